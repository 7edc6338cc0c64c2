"""Tasks on threads, their results in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


def in_order(tasks: Iterable[Callable[[], T]], threads: int) -> Iterator[T]:
    """Yield the result of each task in order, with up to `threads` at work and as many results waiting.

    The first failed task raises its error here; tasks that have begun are waited for.
    """
    if threads <= 1:
        for task in tasks:
            yield task()
        return
    with ThreadPoolExecutor(threads) as pool:
        waiting: deque[Future[T]] = deque()
        try:
            for task in tasks:
                waiting.append(pool.submit(task))
                if len(waiting) > threads:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()
