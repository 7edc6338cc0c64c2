"""Placement of edges and columns in device, pinned or host memory, and byte sizes such as "2GiB"."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from fractions import Fraction

from khop.arguments import as_mapping, one_of, shown, whole

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
            'such as 500000000, "500MB" or "2GiB"'
        )
    return size


AUTO = "auto"
ALL = "*"  # every column that is not named
_SHARE = re.compile(r"(\d{1,3}(?:\.\d{1,6})?)\s*%", re.ASCII)


class StorePlace(StrEnum):
    """Memory of a store, from the fastest for the GPU to the slowest."""

    DEVICE = "device"  # memory of the GPU
    SHARDED = "sharded"  # memory of all GPUs of the machine, a part of the rows or edges in each
    PINNED = "pinned"  # host memory that the GPU reads
    HOST = "host"  # host memory that the CPU reads
    MAPPED = "mapped"  # the graph's files, which the CPU reads as memory
    DISK = "disk"  # the graph's files, which the CPU reads row by row

    @property
    def is_read_by_gpu(self) -> bool:
        """True if kernels read the store, so that its rows need no copy by the CPU."""
        return self in (StorePlace.DEVICE, StorePlace.SHARDED, StorePlace.PINNED)


class Check(StrEnum):
    """Batches of kernels that are compared with the CPU's."""

    FIRST = "first"  # the first of each epoch
    NONE = "none"


@dataclass(frozen=True)
class CacheSize:
    """Size of a column's cache on the GPU: bytes, or a share of the column's bytes."""

    num_bytes: int = 0
    share: Fraction = Fraction(0)

    @classmethod
    def of(cls, given: int | str, name: str = "cache") -> CacheSize:
        """Parse a size as users write it: 4_000_000_000, "4GB" or "20%"."""
        found = _SHARE.fullmatch(given.strip()) if isinstance(given, str) else None
        if found is None:
            if isinstance(given, str) and "%" in given:
                raise ValueError(
                    f'{name} {shown(given)}: must be bytes, such as "4GB", or a share, such as "20%"'
                )
            return cls(byte_size(given, name))
        share = Fraction(found.group(1)) / 100
        if share > 1:
            raise ValueError(f'{name} {shown(given)}: a share of a column is at most "100%"')
        return cls(share=share)

    def bytes_of(self, column_bytes: int) -> int:
        """Return the bytes of the cache of a column that takes `column_bytes`."""
        return min(column_bytes, self.num_bytes + int(self.share * column_bytes))

    def __bool__(self) -> bool:
        return bool(self.num_bytes or self.share)

    def __str__(self) -> str:
        """Return the size as `of` takes it."""
        return f"{float(self.share * 100):g}%" if self.share else str(self.num_bytes)


@dataclass(frozen=True)
class DevicePlacement:
    """Requested memory of a graph's stores on a device. A store without a request is planned.

    The device "cuda" is the GPU of this rank. A placement pickles and may be used by any rank.
    """

    device: str = "cuda"
    topology: StorePlace | None = None  # edges, original ids, and arrays that rules need; None: planned
    columns: Mapping[str, StorePlace] = field(default_factory=dict)  # by column name, or "*"
    caches: Mapping[str, CacheSize] = field(default_factory=dict)  # by column name, or "*"
    check: Check = Check.FIRST

    @classmethod
    def of(
        cls,
        device: object = "cuda",
        topology: StorePlace | str = AUTO,
        columns: StorePlace | str | Mapping[str, StorePlace | str] = AUTO,
        cache: int | str | Mapping[str, int | str] = 0,
        check: Check | str = Check.FIRST,
    ) -> DevicePlacement:
        """Check a request as users write it; "auto" leaves a store to the plan."""
        wanted = _place("topology", topology)
        if wanted in (StorePlace.MAPPED, StorePlace.DISK):
            raise ValueError(
                f'topology "{wanted}": is a place of columns; edges are in memory, or mapped with '
                'topology="host"; give "device", "sharded", "pinned", "host" or "auto"'
            )
        named = as_mapping(columns, lambda place: {ALL: place})
        places = {name: _place(_of("columns", name), place) for name, place in named.items()}
        sizes = as_mapping(cache, lambda size: {ALL: size})
        caches = {name: CacheSize.of(size, _of("cache", name)) for name, size in sizes.items()}
        return cls(
            str(device),
            wanted,
            {name: place for name, place in places.items() if place is not None},
            {name: size for name, size in caches.items() if size},
            one_of("check", check, Check),
        )

    @property
    def is_explicit(self) -> bool:
        """True if a store is requested where the GPU reads it."""
        return any(
            place is not None and place.is_read_by_gpu for place in (self.topology, *self.columns.values())
        )

    def place_of(self, column: str) -> StorePlace | None:
        """Return the requested memory of a column; None if it is planned."""
        return self.columns.get(column, self.columns.get(ALL))

    def cache_of(self, column: str) -> CacheSize:
        """Return the requested size of a column's cache."""
        return self.caches.get(column, self.caches.get(ALL, CacheSize()))

    def check_names(self, known: Mapping[str, object]) -> None:
        """Raise ValueError for a column that no node type has."""
        for what, named in (("columns", self.columns), ("cache", self.caches)):
            for name in named:
                if name != ALL and name not in known:
                    raise ValueError(f"{what}: no node type has a column {name!r}; there are {sorted(known)}")


def _of(what: str, name: str) -> str:
    return what if name == ALL else f"{what} of {name!r}"


def _place(name: str, given: StorePlace | str) -> StorePlace | None:
    if given == AUTO:
        return None
    try:
        return one_of(name, given, StorePlace)
    except ValueError as error:
        raise ValueError(f'{error}, or "auto"') from None
