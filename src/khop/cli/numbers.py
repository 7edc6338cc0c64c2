"""Parsing of numbers in options."""

from __future__ import annotations

_LARGEST = 2**63 - 1
_LARGEST_FANOUT = 2**31 - 1


def whole(option: str, text: str) -> int:
    """Parse a whole number, such as 2449029 or 1e11. Raises ValueError that names the option."""
    try:
        number = int(text) if text.strip().lstrip("+-").isdigit() else float(text)
        if number == int(number) and abs(number) <= _LARGEST:
            return int(number)
    except (ValueError, OverflowError):
        pass
    raise ValueError(f"{option} {text!r}: give a whole number, as 2449029 or 1e11, below 2^63")


def fanout_list(text: str) -> list[int]:
    """Parse the numbers of --fanouts."""
    return [_fanout(word) for word in text.split(",")]


def _fanout(word: str) -> int:
    try:
        fanout = int(word)
    except ValueError:
        fanout = -2
    if not -1 <= fanout <= _LARGEST_FANOUT:
        raise ValueError(
            f"--fanouts {word!r}: give numbers as 15,10,5, each at most {_LARGEST_FANOUT}, where -1 is for "
            "all neighbors"
        )
    return fanout
