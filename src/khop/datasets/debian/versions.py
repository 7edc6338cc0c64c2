"""The order of Debian versions (Debian Policy, section 5.6.12), as a sort key."""

from __future__ import annotations

import re

Part = tuple[tuple[tuple[int, ...], int], ...]
Key = tuple[int, Part, Part]

_RUNS = re.compile(r"(\D*)(\d*)")


def version_key(version: str) -> Key:
    """Return a sort key. Keys compare as `dpkg --compare-versions` compares versions."""
    epoch, colon, rest = version.partition(":")
    if not (colon and epoch.isdecimal()):
        epoch, rest = "0", version
    upstream, hyphen, revision = rest.rpartition("-")
    return int(epoch), _part(upstream if hyphen else rest), _part(revision if hyphen else "")


def _part(text: str) -> Part:
    # The pattern's last match is empty. It sorts after "~" and before everything else, as the end must.
    runs = _RUNS.findall(text or "0")
    return tuple(((*map(_rank, letters), 0), int(digits or 0)) for letters, digits in runs)


def _rank(character: str) -> int:
    if character == "~":
        return -1
    return ord(character) if character.isalpha() else ord(character) + 0x110000
