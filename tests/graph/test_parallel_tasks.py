"""Tasks on threads: results in order, few at once, the first error."""

from __future__ import annotations

from functools import partial
from threading import Event, get_ident

import pytest

from khop.graph.parallel_tasks import in_order


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_results_come_in_order(threads: int) -> None:
    assert list(in_order((partial(pow, n, 2) for n in range(100)), threads)) == [n * n for n in range(100)]


def test_no_more_tasks_begin_than_are_waited_for() -> None:
    begun: list[int] = []
    results = in_order((partial(begun.append, n) for n in range(100)), 2)
    next(results)
    assert len(begun) <= 4
    results.close()
    assert len(begun) <= 4


def test_tasks_run_at_once() -> None:
    first, second = Event(), Event()

    def meet(mine: Event, other: Event) -> int:
        mine.set()
        assert other.wait(60)
        return get_ident()

    assert len(set(in_order([partial(meet, first, second), partial(meet, second, first)], 2))) == 2


@pytest.mark.parametrize("threads", [1, 3])
def test_the_first_error_is_raised(threads: int) -> None:
    results = in_order((partial(divmod, 1, n) for n in (1, 0, 1)), threads)
    assert next(results) == (1, 0)
    with pytest.raises(ZeroDivisionError):
        next(results)
