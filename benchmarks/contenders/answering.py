"""The loop of every contender: a JSON line in, a task done, a JSON line out. Runs in peers' environments
too."""

from __future__ import annotations

import json
import resource
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

Answer = dict[str, Any]
Task = Callable[[dict[str, Any]], Answer]


def answer_tasks(tasks: dict[str, Task]) -> None:
    """Answer until stdin ends. Whatever a library prints goes to stderr, so that stdout holds answers
    alone."""
    answers, sys.stdout = sys.stdout, sys.stderr
    for line in sys.stdin:
        settings = json.loads(line)
        task = tasks.get(settings["task"])
        answer = task(settings) if task else {"skipped": f"has no task {settings['task']!r}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def median_ms(action: Callable[[int], Any], count: int, warm_up: int = 2) -> tuple[float, Any]:
    """Median milliseconds of `action(i)` over `count` calls after `warm_up` more, and its last result."""
    times = []
    result = None
    for i in range(warm_up + count):
        start = time.perf_counter()
        result = action(i)
        times.append(time.perf_counter() - start)
    times = sorted(times[warm_up:])
    return 1e3 * times[len(times) // 2], result


def mean_ms(iterator: Any, count: int, warm_up: int = 3) -> float:
    """Milliseconds per item of an iterator in steady state: total over count, after `warm_up` items."""
    for _ in range(warm_up):
        next(iterator)
    start = time.perf_counter()
    for _ in range(count):
        next(iterator)
    return 1e3 * (time.perf_counter() - start) / count


class PeakMemory:
    """The most anonymous memory that this process held inside the block, beyond what it held before."""

    mib = 0.0

    def __enter__(self) -> PeakMemory:
        self._before = anonymous_mib()
        self._ended = threading.Event()
        self._watcher = threading.Thread(target=self._watch)
        self._watcher.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._watcher.join()

    def _watch(self) -> None:
        while not self._ended.wait(0.005):
            self.mib = max(self.mib, anonymous_mib() - self._before)


def anonymous_mib() -> float:
    """The anonymous memory that this process holds: mapped files not counted."""
    fields = dict(
        line.split(":") for line in Path("/proc/self/status").read_text().splitlines() if ":" in line
    )
    return int(fields["RssAnon"].split()[0]) / 1024


def peak_rss_mib() -> float:
    """The most memory that this process has held, mapped files included."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
