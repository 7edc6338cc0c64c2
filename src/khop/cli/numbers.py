"""Numbers that options take as text."""

from __future__ import annotations


def whole(option: str, text: str) -> int:
    """A whole number, as 2449029 or 1e11; ValueError names the option."""
    try:
        number = float(text)
        if number == int(number):
            return int(text) if text.strip().lstrip("+-").isdigit() else int(number)
    except (ValueError, OverflowError):
        pass
    raise ValueError(f"{option} {text!r}: give a whole number, as 2449029 or 1e11")


def fanout_list(text: str) -> list[int]:
    """The numbers of --fanouts."""
    return [_fanout(word) for word in text.split(",")]


def _fanout(word: str) -> int:
    try:
        fanout = int(word)
    except ValueError:
        fanout = -2
    if fanout < -1:
        raise ValueError(f"--fanouts {word!r}: give numbers as 15,10,5, where -1 is for all neighbours")
    return fanout
