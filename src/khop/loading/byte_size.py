"""Byte sizes as users write them: 500000000, "500MB" or "2GiB"."""

from __future__ import annotations

import re

from khop.arguments import shown, whole

LARGEST = (1 << 63) - 1
_SIZE = re.compile(r"(\d{1,19}(?:\.\d{1,19})?)\s*([kmgtp]?)(i?)b?", re.IGNORECASE | re.ASCII)
_POWERS = {letter: power for power, letter in enumerate(("", "k", "m", "g", "t", "p"))}


def byte_size(given: int | str, name: str, *, least: int = 0) -> int:
    """Return the number of bytes; ValueError quotes the argument.

    Units are powers of 1000, or of 1024 with "i".
    """
    found = _SIZE.fullmatch(given.strip()) if isinstance(given, str) else None
    if found is not None:
        number, unit, binary = found.groups()
        factor = (1024 if binary else 1000) ** _POWERS[unit.lower()]
        size = int(float(number) * factor) if "." in number else int(number) * factor
    else:
        number = whole(given)
        size = least - 1 if number is None else number
    if not least <= size <= LARGEST:
        raise ValueError(
            f"{name} {shown(given)}: must be a whole number of bytes, {least} or more and below 2**63, "
            'as 500000000, "500MB" or "2GiB"'
        )
    return size
