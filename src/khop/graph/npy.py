"""An array of a graph folder: a .npy file, written with its checksum and mapped copy-on-write."""

from __future__ import annotations

import ast
import hashlib
import math
import mmap
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
import numpy.typing as npt

from khop.errors import REMEDY
from khop.graph.atomic import naming
from khop.kernels.id_table import bucket_bits

if TYPE_CHECKING:
    import torch
    from torch import Tensor


CHUNK_BYTES = 16 << 20
STORED = {  # logical dtype -> dtype in the .npy header; NumPy has no bfloat16, its bits are stored as uint16
    "bool": "|b1",
    "uint8": "|u1",
    "int8": "|i1",
    "int16": "<i2",
    "int32": "<i4",
    "int64": "<i8",
    "float16": "<f2",
    "float32": "<f4",
    "float64": "<f8",
    "bfloat16": "<u2",
}
_MAGIC = b"\x93NUMPY\x01\x00"
_ALIGNMENT = 64
_LONGEST_HEADER = 1 << 16
# Without it Linux refuses to map a file larger than memory copy-on-write. Python names it since 3.13.
_NORESERVE = 0x4000 if sys.platform == "linux" else 0


@dataclass(frozen=True)
class ArrayEntry:
    """Entry of one array in graph.json."""

    dtype: str  # logical, a key of STORED
    shape: tuple[int, ...]
    bytes: int  # of the whole file
    sha256: str  # of the whole file

    @property
    def data_bytes(self) -> int:
        """Bytes of the file after the header."""
        return math.prod(self.shape) * np.dtype(STORED[self.dtype]).itemsize


def unchecked_entry(dtype: str, shape: tuple[int, ...]) -> ArrayEntry:
    """Return the entry of an array without a recorded checksum."""
    data_bytes = math.prod(shape) * np.dtype(STORED[dtype]).itemsize
    return ArrayEntry(dtype, shape, len(array_header(dtype, shape)) + data_bytes, "")


def write_array(
    path: Path,
    dtype: str,
    shape: tuple[int, ...],
    chunks: Iterable[npt.NDArray[Any]],
    wrote: Callable[[int], None],
) -> ArrayEntry:
    """Write chunks of rows as one array and flush it to disk; `wrote` is called with each chunk's bytes."""
    header = array_header(dtype, shape)
    digest = hashlib.sha256(header)
    size = len(header)
    path.parent.mkdir(parents=True, exist_ok=True)
    with naming(path), path.open("wb") as file:
        file.write(header)
        for chunk in chunks:
            block = np.ascontiguousarray(chunk, STORED[dtype]).reshape(-1).view(np.uint8).data
            digest.update(block)
            file.write(block)
            size += len(block)
            wrote(len(block))
        flush(file)
    entry = ArrayEntry(dtype, shape, size, digest.hexdigest())
    assert size == len(header) + entry.data_bytes
    return entry


def flush(file: BinaryIO) -> None:
    """Flush a file, so that its contents are on disk when this returns."""
    file.flush()
    os.fsync(file.fileno())


def map_array(path: Path, entry: ArrayEntry) -> Tensor:
    """Map an array copy-on-write: data is read on use, and processes share the pages.

    The file must fit `entry` (see `file_problem`).
    """
    return map_pages(path, entry)[0]


def map_pages(path: Path, entry: ArrayEntry) -> tuple[Tensor, mmap.mmap | None]:
    """Map an array as `map_array` does; also return its pages, None for an empty array."""
    import torch

    if entry.data_bytes == 0:
        return torch.empty(entry.shape, dtype=torch_dtype(entry.dtype)), None
    pages = _map_file(path, entry)
    flat = torch.frombuffer(
        pages,
        dtype=torch_dtype(entry.dtype),
        count=math.prod(entry.shape),
        offset=entry.bytes - entry.data_bytes,
    )
    return flat.view(entry.shape), pages


def map_numpy(path: Path, entry: ArrayEntry) -> npt.NDArray[Any]:
    """Map an array as a NumPy array; bfloat16 as uint16 bits."""
    if entry.data_bytes == 0:
        return np.empty(entry.shape, STORED[entry.dtype])
    offset, count = entry.bytes - entry.data_bytes, math.prod(entry.shape)
    flat = np.frombuffer(_map_file(path, entry), STORED[entry.dtype], count, offset)
    return flat.reshape(entry.shape)


def _map_file(path: Path, entry: ArrayEntry) -> mmap.mmap:
    with path.open("rb") as file:
        return mmap.mmap(
            file.fileno(),
            entry.bytes,
            flags=mmap.MAP_PRIVATE | _NORESERVE,
            prot=mmap.PROT_READ | mmap.PROT_WRITE,
        )


def file_problem(path: Path, entry: ArrayEntry) -> str | None:
    """Return the difference between a file's size or header and `entry`, or None. Reads no data."""
    try:
        size = path.stat().st_size
        if size != entry.bytes:
            return f"has {size:,} bytes, graph.json says {entry.bytes:,}"
        with path.open("rb") as file:
            descr, shape = header_of(file)
            header_bytes = file.tell()
    except FileNotFoundError:
        return "is missing"
    except ValueError:
        return "has no readable .npy header"
    if (descr, shape) != (STORED[entry.dtype], entry.shape) or header_bytes + entry.data_bytes != size:
        return f"holds {descr} of shape {shape}, graph.json says {STORED[entry.dtype]} of shape {entry.shape}"
    return None


def file_checksum(path: Path, read: Callable[[int], None]) -> str:
    """Return the sha256 of a whole file, as `sha256sum` prints it; `read` gets the bytes of each chunk."""
    digest, buffer = hashlib.sha256(), memoryview(bytearray(1 << 20))  # stays in the caches of a core
    with path.open("rb", buffering=0) as file:
        while size := file.readinto(buffer):
            digest.update(buffer[:size])
            read(size)
    return digest.hexdigest()


def row_chunks(array: npt.NDArray[Any]) -> Iterator[tuple[int, npt.NDArray[Any]]]:
    """Yield slices of a few MiB along the first axis, each with the number of its first row."""
    row_bytes = max(1, math.prod(array.shape[1:]) * array.itemsize)
    rows = max(1, CHUNK_BYTES // row_bytes)
    for start in range(0, len(array), rows):
        yield start, array[start : start + rows]


def torch_dtype(name: str) -> torch.dtype:
    """Return the torch dtype with a name from STORED."""
    import torch

    dtype: torch.dtype = getattr(torch, name)
    return dtype


def array_header(dtype: str, shape: tuple[int, ...]) -> bytes:
    """Return the .npy header of an array."""
    # Not NumPy's: its padding differs between versions, and checksums must depend only on the content.
    text = f"{{'descr': '{STORED[dtype]}', 'fortran_order': False, 'shape': {shape}, }}"
    length = len(_MAGIC) + 2 + len(text) + 1
    text += " " * (-length % _ALIGNMENT) + "\n"
    return _MAGIC + len(text).to_bytes(2, "little") + text.encode("ascii")


def header_of(file: BinaryIO) -> tuple[str, tuple[int, ...]]:
    """Return the dtype and the shape from a .npy header; ValueError for damage."""
    # NumPy's reader repairs headers and warns; for khop any deviation is damage.
    magic = file.read(len(_MAGIC))
    if magic[:-2] != _MAGIC[:-2]:
        raise ValueError("not a .npy file")
    length = int.from_bytes(file.read(2 if magic == _MAGIC else 4), "little")  # 4 since version 2.0
    try:
        header = ast.literal_eval(file.read(min(length, _LONGEST_HEADER)).decode("latin-1"))
        descr, fortran_order, shape = (header[name] for name in ("descr", "fortran_order", "shape"))
        if fortran_order and len(shape) > 1:
            raise ValueError("columns first")
        return str(descr), tuple(shape)
    except (SyntaxError, TypeError, KeyError) as error:
        raise ValueError(f"not a .npy header: {error}") from error


Array = npt.NDArray[Any]


class CheckedRows:
    """A mapped array that is read once, from its first row to its last.

    The read of the last row raises ValueError if the file differs from its checksum, so that damaged data
    never get a new checksum.
    """

    def __init__(self, path: Path, entry: ArrayEntry) -> None:
        self._path, self._entry = path, entry
        self._values = map_numpy(path, entry)
        self._read = 0
        with path.open("rb") as file:
            self._digest = hashlib.sha256(file.read(entry.bytes - entry.data_bytes))

    def __len__(self) -> int:
        return int(self._entry.shape[0])

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        return int(np.prod(self._entry.shape[1:], dtype=np.int64)) * self._values.itemsize

    def read(self, first: int, last: int) -> Array:
        """Return rows `first` to `last` - 1; `first` is the end of the previous call."""
        assert first == self._read, (first, self._read)
        rows = self._values[first:last]
        self._digest.update(rows.reshape(-1).view(np.uint8).data if rows.size else b"")
        self._read = last
        if last == len(self) and self._digest.hexdigest() != self._entry.sha256:
            raise ValueError(f"{self._path}: checksum differs from graph.json; {REMEDY}")
        return rows


ID_DTYPES = ("int32", "int64")


@dataclass(frozen=True)
class Expected:
    """Shape and dtype that an array must have according to the counts."""

    rows: int | None  # None: any number
    dtypes: tuple[str, ...] = ()  # dtypes of a vector; () for a column, of any dtype and row shape

    def fits(self, entry: ArrayEntry) -> bool:
        """Return True if the array described in graph.json has this shape and dtype."""
        rows = self.rows is None or entry.shape[:1] == (self.rows,)
        return rows and (not self.dtypes or (len(entry.shape) == 1 and entry.dtype in self.dtypes))

    def __str__(self) -> str:
        rows = "any" if self.rows is None else self.rows
        return f"{' or '.join(self.dtypes)} of shape ({rows},)" if self.dtypes else f"shape ({rows}, ...)"


def _index_arrays(count: int) -> dict[str, Expected]:
    return {
        "buckets": Expected((1 << bucket_bits(count)) + 1, ("int64",)),
        "rows": Expected(count, ID_DTYPES),
        "tags": Expected(count, ("int16",)),
    }


def _string_arrays(count: int) -> dict[str, Expected]:
    strings = {"offsets": Expected(count + 1, ("int64",)), "bytes": Expected(None, ("uint8",))}
    return strings | _index_arrays(count)


def _integer_arrays(count: int) -> dict[str, Expected]:
    return {"keys": Expected(count, ("int64",))} | _index_arrays(count)


ID_ARRAYS: dict[str, Callable[[int], dict[str, Expected]]] = {
    "string": _string_arrays,
    "int64": _integer_arrays,
}  # arrays of the nodes' own ids, by the kind of ids and the number of nodes
