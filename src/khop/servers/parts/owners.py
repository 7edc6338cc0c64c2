"""The list of the servers that have each part of a graph: owners.toml."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from khop.servers.access import Access, Limits
from khop.servers.addresses import Address, parsed_addresses

_ATTEMPT_S = 5.0
_FILES = ("token_file", "ca", "client_cert", "client_key")
_NUMBERS = ("attempt", "deadline")
_KEYS = {"parts", "insecure", *_FILES, *_NUMBERS}
_FORM = 'parts = [["10.0.0.5:7311"], ["10.0.0.6:7311", "10.0.0.7:7311"]]'


@dataclass(frozen=True)
class Owners:
    """Addresses of the servers of each part, and how servers reach each other."""

    parts: tuple[tuple[str, ...], ...]  # by number of the part; any of a part's servers may be asked
    access: Access = field(default_factory=Access)
    limits: Limits = field(default_factory=lambda: Limits(attempt_s=_ATTEMPT_S))

    def addresses(self, part: int) -> tuple[Address, ...]:
        """Return the addresses of the servers of a part."""
        return parsed_addresses(self.parts[part])

    def check(self, part: int, num_parts: int) -> None:
        """Raise ValueError unless the list fits a graph with so many parts, of which `part` is one."""
        if len(self.parts) != num_parts:
            raise ValueError(
                f"--owners: lists servers of {len(self.parts)} parts, and the graph has {num_parts}; "
                "list each part once, in order"
            )
        if not 0 <= part < num_parts:
            raise ValueError(f"--part {part}: the graph has parts 0 to {num_parts - 1}")
        if num_parts == 1:
            raise ValueError("--part: the graph has one part; serve the folder without --part and --owners")


def read_owners(path: Path) -> Owners:
    """Read owners.toml; ValueError names the key that is wrong. Files in it are relative to its folder."""
    try:
        given = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: is no TOML ({error})") from None
    if unknown := sorted(given.keys() - _KEYS):
        raise ValueError(f"{path}: unknown key {unknown[0]!r}; there are {', '.join(sorted(_KEYS))}")
    parts = _parts(path, given.get("parts"))
    files = {name: _file(path, name, given[name]) for name in _FILES if name in given}
    insecure = given.get("insecure", False)
    if not isinstance(insecure, bool):
        _refuse(path, "insecure", insecure, "true or false")
    limits = Limits(
        deadline_s=given.get("deadline", Limits.deadline_s),
        attempt_s=given.get("attempt", _ATTEMPT_S),
    )
    found = Owners(parts, Access(**files, encryption="off" if insecure else "remote"), limits)
    for part in range(len(parts)):
        found.addresses(part)
    return found


def _parts(path: Path, given: object) -> tuple[tuple[str, ...], ...]:
    found = [_texts(each) for each in given] if isinstance(given, list) else []
    if not found or not all(found):
        _refuse(path, "parts", given, f"a list of addresses for each part, as in {_FORM}")
    return tuple(found)


def _texts(given: object) -> tuple[str, ...]:
    """Return the texts of a list; nothing if it is no list of texts."""
    texts = tuple(each for each in given if isinstance(each, str)) if isinstance(given, list) else ()
    return texts if isinstance(given, list) and len(texts) == len(given) else ()


def _file(path: Path, name: str, given: object) -> Path:
    if not isinstance(given, str):
        _refuse(path, name, given, "the path of a file")
    return path.parent / given


def _refuse(path: Path, key: str, value: object, wanted: str) -> NoReturn:
    raise ValueError(f"{path}: {key} {value!r}: must be {wanted}")
