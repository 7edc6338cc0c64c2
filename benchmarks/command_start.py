"""How much CPU time does the command take where it needs no tensor, beside `import torch`?

Each call runs in new processes, interleaved with `import torch`; the median CPU time (user and system)
of each is compared. The promise: under a third of `import torch`.

    python benchmarks/command_start.py [--rounds 9]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import numpy as np

import khop

PROMISE = 1 / 3
TORCH = "import torch"
_SIZES = "--nodes 1e9 --edges 1e10 --feature-bytes 400 --machines 8 --network 10 --memory 256"
CALLS: Mapping[str, str] = {  # what is measured -> the words after `khop`
    "--version": "--version",
    "--help": "--help",
    "train --help": "train --help",
    "infer --help": "infer --help",
    "graph split --help": "graph split --help",
    "typo in a command": "trian",
    "typo in an option": "train debian --epoch 3",
    "wrong value": "train debian --epochs many",
    "no such run": "train debain",
    "no such folder": "info nowhere",
    "info": "info graph",
    "plan": f"plan --fanouts 15,10,5 {_SIZES}",
}
TABS: Mapping[str, str] = {  # what is completed -> the line before TAB
    "TAB of a command": "khop tr",
    "TAB of an option": "khop train --lea",
    "TAB of a value": "khop train --device c",
}


def cpu_seconds(words: Sequence[str], environment: Mapping[str, str], folder: Path) -> float:
    """User and system time of one new process and its threads."""
    process = subprocess.Popen(
        words,
        cwd=folder,
        env=dict(environment),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return used.ru_utime + used.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=9)
    rounds = parser.parse_args().rounds
    python = [sys.executable]
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("COMP_", "_KHOP"))}
    work: dict[str, tuple[list[str], dict[str, str]]] = {TORCH: ([*python, "-c", TORCH], plain)}
    for name, words in CALLS.items():
        work[name] = ([*python, "-m", "khop", *words.split()], plain)
    for name, line in TABS.items():
        position = str(line.count(" "))
        tab = {"_KHOP_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": position}
        work[name] = ([*python, "-m", "khop"], plain | tab)
    taken: dict[str, list[float]] = {name: [] for name in work}
    with TemporaryDirectory() as place:
        ids = np.arange(1000)
        edges = khop.EdgeTable(ids, np.roll(ids, 1))
        khop.write_graph(Path(place, "graph"), {"a": khop.NodeTable(1000)}, {("a", "to", "a"): edges})
        for _ in range(rounds):  # interleaved, so that a busy moment of the machine meets all of them
            for name, (words, environment) in work.items():
                taken[name].append(cpu_seconds(words, environment, Path(place)))
    seconds = {name: median(times) for name, times in taken.items()}
    ratios = {name: round(each / seconds[TORCH], 3) for name, each in seconds.items() if name != TORCH}
    report = {"cpu_seconds": seconds, "ratios": ratios, "worst": max(ratios.values()), "promise": PROMISE}
    print(json.dumps({**report, "rounds": rounds}, indent=1))
    sys.exit(report["worst"] > PROMISE)


if __name__ == "__main__":
    main()
