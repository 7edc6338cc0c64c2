"""Exact dictionaries from keys, strings or integers, to consecutive ids in order of first appearance.

An index on disk finds the id of a key by a bucket of its XXH64.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

import khop._core as _core

Int64s = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]
Kind = Literal["int64", "string"]
MISSING = -1  # the id of a key that a table does not have


@dataclass(frozen=True, eq=False)
class StringKeys:
    """Concatenated strings: string i is data[offsets[i]:offsets[i + 1]], in UTF-8."""

    offsets: Int64s  # (strings + 1)
    data: Bytes

    @classmethod
    def of(cls, strings: Sequence[str]) -> StringKeys:
        """Encode strings."""
        encoded = [string.encode() for string in strings]
        offsets = np.zeros(len(encoded) + 1, np.int64)
        np.cumsum([len(one) for one in encoded], out=offsets[1:])
        return cls(offsets, np.frombuffer(b"".join(encoded), np.uint8))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, rows: slice) -> StringKeys:
        begin, end, _ = rows.indices(len(self))
        return StringKeys(self.offsets[begin : max(begin, end) + 1], self.data)

    def bytes_at(self, row: int) -> bytes:
        """Return the bytes of one string."""
        return self.data[self.offsets[row] : self.offsets[row + 1]].tobytes()

    def strings(self) -> list[str]:
        """Decode all strings."""
        return [self.bytes_at(row).decode() for row in range(len(self))]

    @property
    def nbytes(self) -> int:
        """Bytes of the strings and their offsets."""
        return int(self.offsets[-1] - self.offsets[0]) + self.offsets.nbytes


Keys = StringKeys | Int64s


def keys_at(keys: Keys, rows: Int64s) -> Keys:
    """Return the keys at some rows, in their order."""
    if not isinstance(keys, StringKeys):
        return np.ascontiguousarray(keys[rows])
    starts, lengths = keys.offsets[rows], keys.offsets[rows + 1] - keys.offsets[rows]
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
    places = np.arange(offsets[-1]) + np.repeat(starts - offsets[:-1], lengths)
    return StringKeys(offsets, np.ascontiguousarray(keys.data[places]))


def joined_keys(pieces: Sequence[Keys], kind: Kind) -> Keys:
    """Concatenate the keys of several pieces of one kind."""
    if kind == "int64":
        return np.concatenate(
            [np.empty(0, np.int64), *(one for one in pieces if isinstance(one, np.ndarray))]
        )
    strings = [one for one in pieces if isinstance(one, StringKeys)]
    lengths = [np.diff(one.offsets) for one in strings]
    offsets = np.concatenate([np.zeros(1, np.int64), *lengths]).cumsum()
    texts = [one.data[one.offsets[0] : one.offsets[-1]] for one in strings]
    return StringKeys(offsets, np.concatenate([np.empty(0, np.uint8), *texts]))


KeysT = TypeVar("KeysT", StringKeys, Int64s)


class IdTable(Protocol[KeysT]):
    """Implementers map keys to the ids 0, 1, 2, ... in order of first appearance.

    `find` is thread-safe as long as no thread adds keys.
    """

    _core: _core.TextTable | _core.IntegerTable

    def append(self, keys: KeysT) -> int:
        """Give key i the id len(self) + i; return -1.

        If a key is already in the table, stop and return its position; the keys before it have been added.
        """
        ...

    def add(self, keys: KeysT) -> Int64s:
        """Return the id of each key; new keys get the next ids."""
        ...

    def find(self, keys: KeysT) -> Int64s:
        """Return the id of each key, -1 for keys that are not in the table."""
        ...

    def keys(self, ids: Int64s) -> KeysT:
        """Return the keys of some ids."""
        ...

    def spill_beyond(self, num_bytes: int, folder: str) -> None:
        """Move the table to files in `folder` before it takes more than `num_bytes` of memory.

        The files are unnamed and deleted with the table. The system may evict their pages. If the disk is
        full, later calls of `append` and `add` raise OSError.
        """
        self._core.spill_beyond(num_bytes, folder)

    @property
    def nbytes(self) -> int:
        """Size of the table in bytes, in memory or in files."""
        return self._core.nbytes

    @property
    def is_spilled(self) -> bool:
        """True if the table is in files."""
        return self._core.is_spilled

    def __len__(self) -> int:
        return len(self._core)


class StringTable(IdTable[StringKeys]):
    """A dictionary of strings; see IdTable. Takes 16 to 24 bytes per string and their bytes."""

    def __init__(self, expected: int = 0) -> None:
        self._core = _core.TextTable(expected)

    def append(self, keys: StringKeys) -> int:
        """Give new ids to all keys; return the position of the first key that already has one, or -1."""
        return _core.append_text(self._core, keys.offsets, keys.data)

    def add(self, keys: StringKeys) -> Int64s:
        """Return the id of each key; new keys get the next ids."""
        ids = np.empty(len(keys), np.int64)
        _core.add_text(self._core, keys.offsets, keys.data, ids)
        return ids

    def find(self, keys: StringKeys) -> Int64s:
        """Return the id of each key, -1 for keys that are not in the table."""
        ids = np.empty(len(keys), np.int64)
        _core.find_text(self._core, keys.offsets, keys.data, ids)
        return ids

    def keys(self, ids: Int64s) -> StringKeys:
        """Return the keys of some ids."""
        offsets, data = _core.text_of(self._core, np.ascontiguousarray(ids, np.int64))
        return StringKeys(offsets.numpy(), data.numpy())


class IntegerTable(IdTable[Int64s]):
    """A dictionary of int64 keys; see IdTable. Takes 19 to 32 bytes per key."""

    def __init__(self, expected: int = 0) -> None:
        self._core = _core.IntegerTable(expected)

    def append(self, keys: Int64s) -> int:
        """Give new ids to all keys; return the position of the first key that already has one, or -1."""
        return _core.append_integers(self._core, keys)

    def add(self, keys: Int64s) -> Int64s:
        """Return the id of each key; new keys get the next ids."""
        ids = np.empty(len(keys), np.int64)
        _core.add_integers(self._core, keys, ids)
        return ids

    def find(self, keys: Int64s) -> Int64s:
        """Return the id of each key, -1 for keys that are not in the table."""
        ids = np.empty(len(keys), np.int64)
        _core.find_integers(self._core, keys, ids)
        return ids

    def keys(self, ids: Int64s) -> Int64s:
        """Return the keys of some ids."""
        return _core.integers_of(self._core, np.ascontiguousarray(ids, np.int64)).numpy()


def id_table(kind: Kind, expected: int = 0) -> IdTable[Any]:
    """Return an empty table with initial capacity for `expected` keys."""
    if expected < 0:
        raise ValueError(f"expected {expected}: must be at least 0 keys")
    return _KINDS[kind](expected)


def key_parts(keys: Keys, skip: int, bits: int) -> Bytes:
    """Return the part of each key, 0 to 2^bits - 1, by the bits of its hash after the first `skip`."""
    part = np.empty(len(keys), np.uint8)
    _parts(keys, skip, bits, part)
    return part


def _parts(keys: Keys, skip: int, bits: int, part: Bytes) -> None:
    if isinstance(keys, StringKeys):
        _core.text_parts(keys.offsets, keys.data, skip, bits, part)
    else:
        _core.integer_parts(keys, skip, bits, part)


_KINDS: dict[Kind, type[StringTable] | type[IntegerTable]] = {"string": StringTable, "int64": IntegerTable}


_FULL = 4  # average keys per bucket


@dataclass(frozen=True, eq=False)
class KeyIndex:
    """Buckets of a table of keys. Bucket b holds the rows and tags from buckets[b] to buckets[b + 1] - 1."""

    buckets: Int64s  # length: a power of two, plus 1
    rows: npt.NDArray[Any]  # int32 or int64 (keys)
    tags: npt.NDArray[np.int16]  # the last 16 bits of each digest

    def find(self, stored: Keys, wanted: Keys) -> Int64s:
        """Return the row of each wanted key among the stored ones, or -1.

        ValueError for wanted keys of another kind, and for damaged files.
        """
        found = np.empty(len(wanted), np.int64)
        if isinstance(stored, StringKeys) and isinstance(wanted, StringKeys):
            there, sought = (stored.offsets, stored.data), (wanted.offsets, wanted.data)
            _core.find_text_keys(self.buckets, self.rows, self.tags, *there, *sought, found)
        elif isinstance(stored, np.ndarray) and isinstance(wanted, np.ndarray):
            _core.find_integer_keys(self.buckets, self.rows, self.tags, stored, wanted, found)
        else:
            kinds = {True: "strings", False: "integers"}
            stored_kind, given = (kinds[isinstance(keys, StringKeys)] for keys in (stored, wanted))
            raise ValueError(f"ids are {given}: this table has {stored_kind}")
        return found


def bucket_bits(keys: int) -> int:
    """Return the number of bits of bucket numbers for a table of `keys` keys."""
    return max(0, (keys // _FULL).bit_length() - 1)


def key_buckets(keys: Keys, bits: int) -> tuple[Int64s, npt.NDArray[np.int16]]:
    """Return the bucket and the tag of each key."""
    bucket, tag = np.empty(len(keys), np.int64), np.empty(len(keys), np.int16)
    if isinstance(keys, StringKeys):
        _core.text_buckets(keys.offsets, keys.data, bits, bucket, tag)
    else:
        _core.integer_buckets(keys, bits, bucket, tag)
    return bucket, tag
