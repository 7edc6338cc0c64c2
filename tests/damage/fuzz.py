"""Mutations of graph folders, parts, derived arrays and checkpoints, run in processes of their own.

A process that crashes or hangs is known with the mutation it was at; another one goes on with the next.
"""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from damage.mutations import KINDS, TARGETS
from damage.trial import FAILURES, OUTCOMES

HANG_S = 120.0  # without a word, on a machine that is busy with other tests
BROKEN = ("crash", "hang")
_TESTS = Path(__file__).parents[1]


@dataclass(frozen=True)
class Outcome:
    """What came of a mutation."""

    number: int
    target: str
    kind: str
    text: str
    outcome: str
    detail: str

    @property
    def is_failure(self) -> bool:
        return self.outcome in (*FAILURES, *BROKEN)


def fuzz(seed: int, count: int, workers: int, targets: Sequence[str] = TARGETS) -> list[Outcome]:
    """The outcomes of mutations 0 to `count` - 1, by number."""
    bounds = [count * worker // workers for worker in range(workers + 1)]
    with ThreadPoolExecutor(workers) as pool:
        found = pool.map(lambda at: list(_range(seed, bounds[at], bounds[at + 1], targets)), range(workers))
    return [outcome for of_worker in found for outcome in of_worker]


def _range(seed: int, first: int, last: int, targets: Sequence[str]) -> Iterator[Outcome]:
    while first < last:
        for outcome in _until_broken(seed, first, last, targets):
            first = outcome.number + 1
            yield outcome


def _until_broken(seed: int, first: int, last: int, targets: Sequence[str]) -> Iterator[Outcome]:
    """Of one process: to the last number, or to the one that broke it."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(_TESTS), *sys.path])}
    environment |= {"OMP_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "1", "PYTHONFAULTHANDLER": "1"}
    command = [sys.executable, "-m", "damage.worker", *map(str, (seed, first, last)), *targets]
    begun: dict[str, Any] | None = None
    with (
        tempfile.TemporaryFile() as told,
        subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=told, bufsize=0) as process,
    ):
        hangs = False
        for line in _lines(process):
            if line is None:
                hangs = True
                process.kill()
                break
            if begun is None:
                begun = json.loads(line)
            else:
                yield Outcome(**begun, **json.loads(line))
                begun = None
        process.wait()
        told.seek(0)
        errors = told.read().decode(errors="replace").strip()
    if begun is not None:
        reason = f"exit {process.returncode}: {_frames(errors)}"
        yield Outcome(**begun, outcome="hang" if hangs else "crash", detail=reason)
    elif process.returncode != 0 or hangs:
        raise RuntimeError(f"mutations {first} to {last - 1}: the process did not begin: {errors[-2000:]}")


def _frames(errors: str) -> str:
    """The innermost frames of what faulthandler wrote, or the end of another traceback."""
    frames = [line.strip() for line in errors.splitlines() if line.startswith("  File ")]
    return " < ".join(frames[:5]) or errors[-500:]


def _lines(process: subprocess.Popen[bytes]) -> Iterator[bytes | None]:
    """Whole lines of stdout; None where none comes for long."""
    assert process.stdout is not None
    waiting = b""
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while True:
            if not selector.select(HANG_S):
                yield None
                return
            block = os.read(process.stdout.fileno(), 1 << 16)
            if not block:
                return
            *lines, waiting = (waiting + block).split(b"\n")
            yield from lines


def summary(outcomes: Sequence[Outcome]) -> str:
    """A table: outcomes by what was damaged and how, and each failure in a line."""
    names = (*BROKEN, *OUTCOMES)
    rows = [("all", outcomes)]
    rows += [(target, [o for o in outcomes if o.target == target]) for target in TARGETS]
    rows += [(kind, [o for o in outcomes if o.kind == kind]) for kind in dict.fromkeys(KINDS)]
    lines = [" ".join(f"{cell:>15}" for cell in ("", "mutations", *names))]
    for title, of_row in rows:
        counts = Counter(o.outcome for o in of_row)
        cells = (title, len(of_row), *(counts[name] for name in names))
        lines.append(" ".join(f"{cell:>15}" for cell in cells))
    failures = [o for o in outcomes if o.is_failure]
    lines += [f"{o.number}: {o.outcome}: {o.text}: {o.detail}" for o in failures]
    return "\n".join(lines)
