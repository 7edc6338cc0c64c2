"""Several observers get every event, in their order."""

from __future__ import annotations

import inspect

import pytest

from khop.training.observer import Observer, Several, Unwatched

EVENTS = [name for name, of in vars(Observer).items() if inspect.isfunction(of) and not name.startswith("_")]


class Noting:
    """An observer that notes every event."""

    def __init__(self, name: str, notes: list[tuple[object, ...]]) -> None:
        self.name, self.notes = name, notes

    def __getattr__(self, event: str) -> object:
        return lambda *values: self.notes.append((self.name, event, *values))


@pytest.mark.parametrize("event", EVENTS)
def test_every_event_is_forwarded_in_order(event: str) -> None:
    notes: list[tuple[object, ...]] = []
    several = Several(Noting("first", notes), Unwatched(), Noting("second", notes))  # type: ignore[arg-type]
    values = range(len(inspect.signature(getattr(Observer, event)).parameters) - 1)
    getattr(several, event)(*values)
    assert notes == [("first", event, *values), ("second", event, *values)]
