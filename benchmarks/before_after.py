"""Compare this khop with another revision: bits of all outputs, instruction counts, and times.

OTHER is the Python of a checkout of another revision with khop installed.

Bits: both revisions write folders, partitions, digests of batches, and runs with checkpoints, scores and rows
of inference (`revision_tasks.py`). Arrays and weights must be equal in every byte, and text but for times and
paths.
Instructions: `scripts/count-instructions` of both checkouts.
Speed: both revisions measure in turns (`revision_speed.py`). A ratio is this khop's time over the other's,
the median over pairs. `--clock cpu` compares CPU time of all threads, for a machine with other work.

Exit status 1 if bits differ or a ratio is above its limit.

usage: python benchmarks/before_after.py OTHER [--parts bits instructions speed] [--pairs 40] [--work FOLDER]
       [--skip debian ranks runs] [--cases trainer] [--clock cpu]
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

from safetensors import safe_open

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
MOST_INSTRUCTIONS, MOST_TIME = 1.01, 1.02
SHOWN = 12  # differences of a file
# Names of measured times, of files and folders, and of the checksums of files that are compared themselves.
NOT_COMPARED = ("seconds", "checksums", "run", "checkpoint", "graph", "khop")
# Versions of formats: checkpoints of format 2 have a digest of state.json.
VERSIONS = ("format",)


@dataclass(frozen=True)
class Row:
    """A row of the table: one kind of output, and the differences found there."""

    what: str
    compared: int  # files, batches or counts
    differences: tuple[str, ...]
    note: str = ""


def versions_of(other: str) -> tuple[Path, Path]:
    """The checkouts of this Python's khop and of the other's."""
    asked = "import khop, pathlib; print(pathlib.Path(khop.__file__).resolve().parents[2])"
    roots = [Path(said(python, "-c", asked)) for python in (sys.executable, other)]
    return roots[0], roots[1]


def said(*command: object) -> str:
    """What a command prints; its failure ends this process."""
    environment = {**os.environ, "OMP_WAIT_POLICY": "passive", "KHOP_LINEAR": "torch"}
    done = subprocess.run(
        [str(word) for word in command],
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
        cwd=os.sep,
        check=False,
    )
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))} ended with {done.returncode}")
    return done.stdout.strip()


def flat(value: object, path: str = "") -> Iterator[tuple[str, object]]:
    """The leaves of parsed text by dotted path, without what is not compared."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            if key not in (*NOT_COMPARED, *VERSIONS):
                yield from flat(item, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list):
        for number, item in enumerate(value):
            yield from flat(item, f"{path}[{number}]")
    else:
        yield path, value


def parsed(path: Path) -> object:
    """The content of a text file; lines of a log as a list."""
    text = path.read_text()
    if path.suffix == ".toml":
        return tomllib.loads(text)
    if path.suffix == ".jsonl":
        return [json.loads(line) for line in text.splitlines()]
    return json.loads(text)


def text_differences(before: Path, after: Path) -> Iterator[str]:
    """Leaves that are absent or differ; those of keys that only the later file has are none."""
    contents = [parsed(path) for path in (before, after)]
    lines = [content if isinstance(content, list) else [content] for content in contents]
    old, new = (dict(flat(of_file)) for of_file in lines)
    for path, value in old.items():
        if path not in new:
            yield f"{path}: absent after"
        elif str(value) != str(new[path]):  # a size may be a number or a text
            yield f"{path}: {value!r} before, {new[path]!r} after"


def later_path(path: str) -> str:
    """The path of a derived array in the later revision: it was `name/array.npy` and is `name.npy`."""
    if "/derived/" not in path:
        return path
    path = re.sub(r"/([^/]+)/array\.npy$", r"/\1.npy", path)
    return re.sub(r"/([^/.]+)\.([^/]+)\.outline\.npy$", r"/\1_outline.\2.npy", path)


def tensor_differences(before: Path, after: Path) -> Iterator[str]:
    """Tensors of weights that differ in a bit."""
    with safe_open(before, "pt") as old, safe_open(after, "pt") as new:
        if old.keys() != new.keys():
            yield f"names: {sorted(set(old.keys()) ^ set(new.keys()))}"
        for name in sorted(set(old.keys()) & set(new.keys())):
            first, second = old.get_tensor(name), new.get_tensor(name)
            if first.dtype != second.dtype or first.shape != second.shape:
                yield f"{name}: {first.dtype} {tuple(first.shape)}, {second.dtype} {tuple(second.shape)}"
            elif first.numpy().tobytes() != second.numpy().tobytes():
                yield f"{name}: by up to {(first.double() - second.double()).abs().max().item():.2g}"


def byte_differences(before: Path, after: Path) -> Iterator[str]:
    """One line where two files differ in a byte. A derived array may have its digest at the end."""
    old, new = before.read_bytes(), after.read_bytes()
    if old != (new[: len(old)] if "derived" in before.parts else new):
        yield "bytes differ"


COMPARED: Mapping[str, Callable[[Path, Path], Iterator[str]]] = {
    ".json": text_differences,
    ".jsonl": text_differences,
    ".toml": text_differences,
    ".safetensors": tensor_differences,
    ".npy": byte_differences,
}
KINDS = {
    "batches": "batches/*",
    "folders": "shop/*",
    "partitions": "parts*",
    "built-in graph": "cache/*",
    "steps and losses": "runs/*/steps.jsonl",
    "epochs and scores": "runs/*/metrics.jsonl",
    "final scores": "runs/*/scores.json",
    "weights and optimizers": "runs/*.safetensors",
    "states of checkpoints": "runs/*/checkpoints/*.json",
    "inference": "runs/*/rows*.npy",
    "run files": "runs/*.toml",
}


def bits(pythons: tuple[str, str], work: Path, skip: list[str]) -> list[Row]:
    """Let both revisions write everything, and compare it."""
    folders = work / "before", work / "after"
    for folder, python in zip(folders, reversed(pythons), strict=True):
        if not folder.exists():
            folder.mkdir(parents=True)
            said(python, HERE / "revision_tasks.py", folder, "--skip", *skip)
    before, after = folders
    paths = sorted(
        {p.relative_to(f).as_posix() for f in folders for p in f.rglob("*") if p.suffix in COMPARED}
    )
    rows = []
    for kind, pattern in KINDS.items():
        chosen = [path for path in paths if fnmatch(path, pattern)]
        found = [line for path in chosen for line in file_differences(path, before, after)]
        paths = [path for path in paths if path not in chosen]
        rows.append(Row(kind, len(chosen), tuple(found)))
    if paths:
        rows.append(Row("other files", len(paths), tuple(f"{path}: of no kind" for path in paths)))
    return rows


def file_differences(path: str, before: Path, after: Path) -> Iterator[str]:
    """Differences of one file of both folders."""
    if not (before / path).exists():
        return  # a file that the earlier revision did not have
    there = after / later_path(path)
    if not there.exists():
        yield f"{path}: absent after"
        return
    lines = list(COMPARED[Path(path).suffix](before / path, there))
    yield from (f"{path}: {line}" for line in lines[:SHOWN])
    if len(lines) > SHOWN:
        yield f"{path}: {len(lines) - SHOWN} more"


def counts(python: str, root: Path) -> dict[str, int]:
    """Instructions of each operation of a checkout."""
    command = [python, str(root / "scripts" / "count-instructions")]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, cwd=root, check=False)
    lines = re.findall(r"^(\S.*?) +([\d,]+) +[\d,]+ +[-+][\d.]+%$", done.stdout, re.MULTILINE)
    if not lines:
        sys.exit(f"{' '.join(command)}: no counts; valgrind and CMake are needed")
    return {name: int(count.replace(",", "")) for name, count in lines}


def instructions(pythons: tuple[str, str], roots: tuple[Path, Path]) -> list[Row]:
    """Compare the counts of operations that both checkouts have."""
    new, old = (counts(python, root) for python, root in zip(pythons, roots, strict=True))
    ratios = {name: new[name] / old[name] for name in new if name in old}
    above = [f"{name}: {ratio:.4f}" for name, ratio in ratios.items() if ratio > MOST_INSTRUCTIONS]
    worst = max(ratios, key=lambda name: ratios[name])
    return [Row("instructions", len(ratios), tuple(above), f"worst {worst} {ratios[worst]:.4f}")]


class Answers:
    """A worker of one revision that measures a case per line."""

    def __init__(self, python: str, clock: str) -> None:
        command = [python, str(HERE / "revision_speed.py"), "--clock", clock]
        environment = {**os.environ, "OMP_WAIT_POLICY": "passive", "KHOP_LINEAR": "torch"}
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=os.sep, env=environment
        )

    def line(self) -> str:
        """The next line of the worker."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            sys.exit(f"a worker ended with {self._process.wait()}")
        return line

    def seconds(self, case: str, turn: int) -> float:
        """The time of one turn of a case."""
        assert self._process.stdin is not None
        print(json.dumps([case, turn]), file=self._process.stdin, flush=True)
        return float(self.line())

    def close(self) -> None:
        """End the worker."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def speed(pythons: tuple[str, str], pairs: int, only: list[str], clock: str) -> list[Row]:
    """Measure every case, or only some, in turns."""
    workers = [Answers(python, clock) for python in pythons]
    cases, _ = (json.loads(worker.line()) for worker in workers)
    if unknown := set(only) - set(cases):
        sys.exit(f"--cases {min(unknown)}: choose of {', '.join(cases)}")
    rows = []
    for case in only or cases:
        ratios = []
        for turn in range(-3, pairs):  # the first turns warm up
            order = (0, 1) if turn % 2 else (1, 0)
            found = {number: workers[number].seconds(case, turn + 3) for number in order}
            if turn >= 0:
                ratios.append(found[0] / found[1])
        low, middle, high = statistics.quantiles(ratios, n=4)
        above = (f"{case}: {middle:.3f}",) if middle > MOST_TIME else ()
        rows.append(Row(case, pairs, above, f"ratio {middle:.3f}, quartiles {low:.3f} to {high:.3f}"))
        print(f"{case}: {rows[-1].note}", file=sys.stderr)
    for worker in workers:
        worker.close()
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("other")
    parser.add_argument("--parts", nargs="*", default=["bits", "instructions", "speed"])
    parser.add_argument("--pairs", type=int, default=40)
    parser.add_argument("--work", type=Path, help="folder of the outputs; what it holds is not written again")
    parser.add_argument("--skip", nargs="*", default=[], choices=["debian", "ranks", "runs"])
    parser.add_argument("--cases", nargs="*", default=[], help="cases of speed to measure; all by default")
    parser.add_argument("--clock", default="wall", choices=["wall", "cpu"])
    given = parser.parse_args()
    pythons = sys.executable, str(Path(given.other).absolute())
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        if "bits" in given.parts:
            rows += bits(pythons, (given.work or Path(folder)).absolute(), given.skip)
    if "instructions" in given.parts:
        rows += instructions(pythons, versions_of(pythons[1]))
    if "speed" in given.parts:
        rows += speed(pythons, given.pairs, given.cases, given.clock)
    for row in rows:
        for difference in row.differences:
            print(difference)
    print(f"{'':<26}{'compared':>9}{'differ':>8}")
    for row in rows:
        print(f"{row.what:<26}{row.compared:>9}{len(row.differences):>8}  {row.note}")
    sys.exit(any(row.differences for row in rows))


if __name__ == "__main__":
    main()
