"""Values are made once while they are used."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from khop.servers.kept import KeptValues


def test_the_last_used_values_are_kept() -> None:
    made: list[int] = []
    kept: KeptValues[int] = KeptValues(2)
    for key in (1, 2, 1, 3, 1, 2):
        assert kept.of(key, lambda key=key: made.append(key) or -key) == -key  # type: ignore[misc]
    assert made == [1, 2, 3, 2]


def test_threads_make_a_value_once_and_another_value_meanwhile() -> None:
    made, begun, other = [], threading.Event(), threading.Event()
    kept: KeptValues[int] = KeptValues(2)

    def make() -> int:
        begun.set()
        assert other.wait(60)
        made.append(1)
        return 1

    with ThreadPoolExecutor(2) as threads:
        waiting = [threads.submit(kept.of, "slow", make) for _ in range(2)]
        assert begun.wait(60)
        assert kept.of("other", lambda: 2) == 2
        other.set()
        assert [each.result() for each in waiting] == [1, 1]
    assert made == [1]


def test_an_error_is_not_kept() -> None:
    kept: KeptValues[int] = KeptValues(1)

    def fail() -> int:
        raise OSError("disk")

    with pytest.raises(OSError, match="disk"):
        kept.of("a", fail)
    assert kept.of("a", lambda: 5) == 5
