"""Check that a release can be made: build it clean, install it as users will, and try it.

1. versions of the package, CITATION.cff and the changelog agree, and the tree is clean;
2. an sdist, and a wheel from it without network; the wheel's tag by auditwheel, and its stable ABI;
3. the wheel in empty environments, for pairs of Python and torch: import, `khop doctor`, `khop train debian`;
4. the documentation site;
5. the licenses of all packages that khop needs.

Pairs that this machine cannot install, and those between the oldest and the newest, are listed as not run.
The exit code is 1 if a check fails.

usage: python scripts/release_check.py [--pairs 3.11:2.6.0,3.13:newest] [--epochs 1] [--allow-changes]
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUILD_TOOLS = ("scikit-build-core>=0.11", "nanobind>=2.9", "cmake>=3.26", "ninja>=1.11")
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
OLDEST_TORCH, NEWEST = "2.6.0", "newest"
SCORE = 0.5  # test accuracy of one epoch on the built-in graph; chance is 0.11
ALLOWED = re.compile(
    r"\b(MIT|BSD|Apache|PSF|Python Software Foundation|ISC|MPL|HPND|Unlicense|0BSD|CNRI|Zlib)\b",
    re.IGNORECASE,
)
OF_CUDA = re.compile(r"^(nvidia-|cuda-|triton$)")  # come with torch's CUDA build, under terms of their own
LICENSES = """
import importlib.metadata as m, json, re
found, todo = {}, ["khop"]
while todo:
    name = re.sub(r"[-_.]+", "-", todo.pop()).lower()
    if name in found: continue
    try: of = m.distribution(name)
    except m.PackageNotFoundError: continue
    texts = [of.metadata.get("License-Expression") or "", (of.metadata.get("License") or "")[:60]]
    classifiers = of.metadata.get_all("Classifier") or []
    texts += [c.rpartition(":: ")[2] for c in classifiers if c.startswith("License")]
    found[name] = "; ".join(dict.fromkeys(" ".join(t.split()) for t in texts if t))
    todo += [re.match(r"[\\w.-]+", r)[0] for r in of.requires or [] if "extra ==" not in r]
print(json.dumps(found))
"""


@dataclass(frozen=True)
class Result:
    """The outcome of one check."""

    name: str
    state: str  # passed, failed, or not run
    detail: str


class Failed(Exception):
    """A check that failed, with its reason."""


def main() -> None:
    """Run all checks, print a line each, and exit with 1 if one failed."""
    arguments = _arguments()
    pairs = [tuple(pair.split(":")) for pair in arguments.pairs.split(",")]
    results: list[Result] = []
    with tempfile.TemporaryDirectory(prefix="khop-release-") as folder:
        work = Path(folder)
        results.append(_tried("versions, clean tree", lambda: versions(arguments.allow_changes)))
        results.append(_tried("sdist; wheel from it, offline", lambda: build(work, pairs[0][0])))
        results.append(_tried("wheel with the stable ABI", lambda: build(work, "3.12")))
        for python, torch in pairs:
            tried = partial(install, work, python, torch, arguments.epochs)
            results.append(_tried(f"Python {python}, torch {torch}", tried))
        results += not_run(pairs)
        results.append(_tried("documentation", lambda: documentation(work)))
        results.append(_tried("licenses of dependencies", lambda: licenses(work, pairs[0][0])))
    print("\nrelease check:")
    for each in results:
        print(f"  {each.state:<8} {each.name:<34} {each.detail}")
    sys.exit(any(each.state == "failed" for each in results))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    newest = next(version for version in reversed(PYTHONS) if python_of(version))
    pairs = f"3.11:{OLDEST_TORCH},{newest}:{NEWEST}"
    parser.add_argument(
        "--pairs", default=pairs, help=f"PYTHON:TORCH to install, by commas (default {pairs})"
    )
    parser.add_argument("--epochs", type=int, default=1, help="epochs of khop train debian (default 1)")
    parser.add_argument("--allow-changes", action="store_true", help="check a tree with changes too")
    return parser.parse_args()


def _tried(name: str, check: Callable[[], str]) -> Result:
    begun = time.perf_counter()
    print(f"== {name}", flush=True)
    try:
        state, detail = "passed", check()
    except Failed as reason:
        state, detail = "failed", str(reason)
    return Result(name, state, f"{detail} ({time.perf_counter() - begun:.0f} s)")


def run(*command: str | Path, cwd: Path = ROOT, **variables: str) -> str:
    """Run a command outside of this environment; return its stdout, or raise Failed with its last lines."""
    hidden = {"PYTHONPATH", "VIRTUAL_ENV", "PIP_CONSTRAINT"}
    environment = {name: value for name, value in os.environ.items() if name not in hidden} | variables
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        last = " / ".join((done.stdout + done.stderr).strip().splitlines()[-4:])
        raise Failed(f"{' '.join(map(str, command[:4]))} ...: exit {done.returncode}: {last}")
    return done.stdout


def versions(allow_changes: bool) -> str:
    """Compare the version's places; the tree has to be what is tagged."""
    version = re.findall(
        r'^__version__ = "(.+)"$', (ROOT / "src/khop/__init__.py").read_text(), re.MULTILINE
    )[0]
    if f"version: {version}\n" not in (ROOT / "CITATION.cff").read_text():
        raise Failed(f"CITATION.cff: has another version than {version}")
    if not re.search(
        rf"^## \[(Unreleased|{re.escape(version)})\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE
    ):
        raise Failed(f"CHANGELOG.md: has no section {version}")
    changes = run("git", "status", "--porcelain").strip()
    if changes and not allow_changes:
        raise Failed(f"the tree has changes, commit them or give --allow-changes: {changes.splitlines()[0]}")
    return version


def python_of(version: str) -> str | None:
    """Return an interpreter of this version on the machine."""
    kept = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))
    for candidate in (*kept, shutil.which(f"python{version}")):
        if candidate and not subprocess.run([candidate, "-c", "import venv"], capture_output=True).returncode:
            return str(candidate)
    return None


def environment(work: Path, name: str, python: str) -> Path:
    """Make an empty environment; return its interpreter."""
    interpreter = python_of(python)
    if interpreter is None:
        raise Failed(f"this machine has no Python {python}")
    folder = work / name
    if not folder.exists():
        run(interpreter, "-m", "venv", folder)
    return folder / "bin" / "python"


def build(work: Path, python: str) -> str:
    """Build an sdist, and a wheel of it without network; auditwheel checks and tags the wheel."""
    sdist, wheels = work / "sdist", work / f"wheel-{python}"
    if not sdist.exists():
        run(sys.executable, "-m", "build", "--no-isolation", "--sdist", "--outdir", sdist, ".")
    tools = environment(work, f"build-{python}", python)
    run(tools, "-m", "pip", "install", "--quiet", *BUILD_TOOLS)
    (archive,) = sdist.glob("*.tar.gz")
    offline = ["unshare", "--net"] if shutil.which("unshare") and os.geteuid() == 0 else []
    options = ("--quiet", "--no-index", "--no-deps", "--no-build-isolation", "--wheel-dir", wheels)
    path = f"{tools.parent}{os.pathsep}{os.environ['PATH']}"
    run(*offline, tools, "-m", "pip", "wheel", *options, archive, PATH=path)
    (made,) = wheels.glob("*.whl")
    beside = Path(sys.executable).parent
    repaired = wheels / "repaired"
    run(
        beside / "auditwheel",
        "repair",
        made,
        "--wheel-dir",
        repaired,
        PATH=f"{beside}{os.pathsep}{os.environ['PATH']}",
    )
    (wheel,) = repaired.glob("*.whl")
    if python != "3.11" and "-abi3-" not in wheel.name:
        raise Failed(f"{wheel.name}: has no stable ABI")
    return f"{wheel.name}, {wheel.stat().st_size / 1e6:.1f} MB" + (
        "" if offline else ", with network: not root"
    )


def install(work: Path, python: str, torch: str, epochs: int) -> str:
    """Install the wheel with this torch into an empty environment, and use it from another folder."""
    there = environment(work, f"use-{python}", python)
    wanted = "torch" if torch == NEWEST else f"torch=={torch}"
    (wheel,) = (work / f"wheel-{'3.11' if python == '3.11' else '3.12'}" / "repaired").glob("*.whl")
    run(there, "-m", "pip", "install", "--quiet", wanted, wheel)
    place = work / f"run-{python}"
    place.mkdir()
    found = run(
        there,
        "-c",
        "import khop, torch; khop.open_graph; print(torch.__version__, khop.__version__)",
        cwd=place,
    )
    doctor = json.loads(run(there.parent / "khop", "doctor", "--json", cwd=place))
    if not doctor["works"]:
        raise Failed(f"khop doctor: {doctor['findings']}")
    words = ("train", "debian", "--epochs", str(epochs), "--out", "run", "--json")
    score = json.loads(run(there.parent / "khop", *words, cwd=place, KHOP_CACHE=str(work / "cache")))[
        "test_accuracy"
    ]
    if score < SCORE:
        raise Failed(f"khop train debian: test accuracy {score}, expected {SCORE} or more")
    return f"torch {found.split()[0]}: test accuracy {score:.3f} after {epochs} epoch(s)"


def not_run(pairs: Sequence[tuple[str, ...]]) -> Iterator[Result]:
    """Yield a line for each supported Python that no pair covers, and one for other versions of torch."""
    tried = {pair[0] for pair in pairs}
    for version in PYTHONS:
        if version not in tried:
            reason = "not among --pairs" if python_of(version) else "not on this machine"
            yield Result(f"Python {version}", "not run", reason)
    yield Result(
        "other torch",
        "not run",
        f"all from {OLDEST_TORCH} on but those of the pairs; CUDA, ROCm, aarch64, macOS",
    )


def documentation(work: Path) -> str:
    """Build the site; a warning fails."""
    run(sys.executable, "scripts/build_docs.py", "--out", work / "site")
    return f"{len(list((work / 'site').rglob('*.html')))} pages"


def licenses(work: Path, python: str) -> str:
    """Print the license of each package that khop needs, and refuse one that is not permissive."""
    there = work / f"use-{python}" / "bin" / "python"
    if not there.exists():
        raise Failed("no environment was installed")
    found: dict[str, str] = json.loads(run(there, "-c", LICENSES))
    for name, text in sorted(found.items()):
        print(f"   {name:<28} {text or 'not stated'}")
    refused = [name for name, text in found.items() if not ALLOWED.search(text) and not OF_CUDA.match(name)]
    if refused:
        raise Failed(f"not known to be permissive: {', '.join(refused)}")
    cuda = sum(bool(OF_CUDA.match(name)) for name in found)
    terms = f"{cuda} of torch's CUDA build have terms of their own"
    return f"{len(found) - cuda} packages are permissive or MPL; {terms}"


if __name__ == "__main__":
    main()
