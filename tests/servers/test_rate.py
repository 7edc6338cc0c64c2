"""The requests of a token are bounded in rate; those of others are not affected."""

from __future__ import annotations

import pytest

from khop.servers import rate as module
from khop.servers.errors import Busy
from khop.servers.rate import RequestRate


class _Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def _taken(rate: RequestRate, owner: str, attempts: int) -> int:
    """How many of some requests are taken now."""
    taken = 0
    for _ in range(attempts):
        try:
            rate.take(owner)
        except Busy:
            continue
        taken += 1
    return taken


def test_a_seconds_requests_may_come_at_once_and_then_as_many_per_second() -> None:
    clock = _Clock()
    rate = RequestRate(10, clock)
    assert _taken(rate, "greedy", 50) == 10
    assert _taken(rate, "other", 5) == 5
    clock.now += 0.35
    assert _taken(rate, "greedy", 50) == 3
    clock.now += 100
    assert _taken(rate, "greedy", 50) == 10


def test_less_than_one_request_per_second_can_be_allowed() -> None:
    clock = _Clock()
    rate = RequestRate(0.5, clock)
    rate.take("a")
    clock.now += 1.9
    with pytest.raises(Busy, match=r"a sends more than 0\.5 requests per second.*--max-rate"):
        rate.take("a")
    clock.now += 0.2
    rate.take("a")


def test_owners_that_asked_long_ago_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_TOKENS", 3)
    rate = RequestRate(1, _Clock())
    for owner in "abcd":
        rate.take(owner)
    assert list(rate._spent) == ["b", "c", "d"]
