"""A finding of `khop doctor`: one line of its output."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class State(StrEnum):
    """State of a finding."""

    OK = "ok"
    NOTE = "note"  # nothing is wrong, but something is not available
    WRONG = "wrong"  # khop works, but slowly, or without a part of it
    STOPS = "stops"  # khop does not work


@dataclass(frozen=True)
class Finding:
    """A property of the installation or of the machine."""

    area: str
    name: str
    found: str
    state: State = State.OK
    remedy: str = ""  # a line for the shell, or a sentence; empty if nothing is to do
