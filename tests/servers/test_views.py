"""Views are kept within a number of bytes, the last used ones first."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from khop.servers.views import KeptViews, default_view_bytes

BASE = torch.zeros(100, dtype=torch.uint8)


def made(size: int) -> Tensor:
    return torch.zeros(size, dtype=torch.uint8)


@given(st.lists(st.integers(0, 5), max_size=30), st.integers(0, 40))
def test_the_last_used_views_that_fit_are_kept(uses: list[int], most: int) -> None:
    views, expected = KeptViews(BASE, most), list[int]()
    sizes = {key: 3 + 4 * key for key in range(6)}
    for key in uses:
        found = views.of(key, lambda key=key: made(sizes[key]))  # type: ignore[misc]
        assert found.numel() == sizes[key]
        expected = [key, *(other for other in expected if other != key)]
        while len(expected) > 1 and sum(sizes[each] for each in expected) > most:
            expected.pop()
    counts = views.counts()
    assert list(reversed(views._entries)) == expected
    assert (counts["views"], counts["view_bytes"]) == (len(expected), sum(sizes[each] for each in expected))
    assert counts["views_made"] - counts["views_dropped"] == counts["views"]


def test_shared_memory_and_that_of_the_graph_count_once() -> None:
    views, shared = KeptViews(BASE, 100), made(60)
    for key in range(5):
        views.of(key, lambda key=key: [BASE, shared, made(key + 1)])  # type: ignore[misc]
    assert views.counts()["view_bytes"] == 60 + sum(range(1, 6))
    assert views.counts()["views_dropped"] == 0


def test_a_view_that_has_grown_is_measured_again() -> None:
    views, growing = KeptViews(BASE, 100), [made(10)]
    views.of("first", lambda: made(50))
    views.of("growing", lambda: growing)
    growing.append(made(80))
    for _ in range(70):
        views.of("growing", list)
    assert list(views._entries) == ["growing"]
    assert views.counts()["view_bytes"] == 90


def test_threads_make_a_view_once_and_another_view_meanwhile() -> None:
    views, begun, other, calls = KeptViews(BASE, 100), threading.Event(), threading.Event(), []

    def make() -> Tensor:
        begun.set()
        assert other.wait(60)
        calls.append(1)
        return made(1)

    with ThreadPoolExecutor(4) as threads:
        waiting = [threads.submit(views.of, "slow", make) for _ in range(4)]
        assert begun.wait(60)
        assert views.of("other", lambda: 2) == 2
        other.set()
        assert len({id(each.result()) for each in waiting}) == 1
    assert calls == [1]


def test_an_error_is_not_kept() -> None:
    views = KeptViews(BASE, 100)
    with pytest.raises(ZeroDivisionError):
        views.of("a", lambda: 1 // 0)
    assert views.counts()["views"] == len(views._entries) == 0
    assert views.of("a", lambda: 5) == 5


def test_the_default_is_a_share_of_the_memory() -> None:
    assert 1 << 20 < default_view_bytes() < 1 << 50
