"""A .npy file that ends with a seal: its sources and the digest of its data."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from torch import Tensor

from khop.graph.atomic import UNFINISHED, flush_entries
from khop.graph.inputs import Given
from khop.graph.npy import (
    STORED,
    ArrayEntry,
    array_header,
    flush,
    header_of,
    map_array,
    row_chunks,
    unchecked_entry,
)
from khop.kernels.digest import digest

FORMAT = "khop-derived 1"
_DIGEST_THREADS = 4
_NO_DIGEST = "0" * 16
_LONGEST_SEAL = 1 << 20
_LOGICAL = {stored: dtype for dtype, stored in STORED.items() if dtype != "bfloat16"}


Source = Mapping[str, str]  # "sha256" of the file from graph.json, "xxh64" of its present data


@dataclass(frozen=True)
class Seal:
    """Name, graph and primary arrays of a derived array."""

    name: str  # of the file, relative to the folder of derived arrays, without ".npy"
    graph: str  # fingerprint
    sources: Mapping[str, Source]  # by file

    def text(self, xxh64: str) -> bytes:
        """Return the bytes after data with digest `xxh64`; their number does not depend on the digest."""
        content = {"format": FORMAT, **asdict(self), "xxh64": xxh64}
        return b"\n" + json.dumps(content, sort_keys=True).encode("ascii") + b"\n"


def source_of(file: Path, entry: ArrayEntry) -> Source:
    """Describe a primary array for a seal. Reads all of it, at several GB/s."""
    return {"sha256": entry.sha256, "xxh64": digest(map_array(file, entry), threads=_DIGEST_THREADS)}


def read_sealed(file: Path, entry: ArrayEntry, seal: Seal) -> Tensor | None:
    """Map an array and check all of its bytes.

    None if it is missing, damaged, or was made for another graph or from other data. Reads the whole file, at
    several GB/s.
    """
    header, length = array_header(entry.dtype, entry.shape), len(seal.text(_NO_DIGEST))
    if file.is_symlink() or not file.is_file():
        return None
    with file.open("rb") as opened:
        if opened.read(len(header)) != header:
            return None
        opened.seek(entry.bytes)
        text = opened.read(length + 1)
    if len(text) != length:
        return None
    values = map_array(file, entry)
    return values if text == seal.text(digest(values, threads=_DIGEST_THREADS)) else None


def write_sealed(file: Path, entry: ArrayEntry, pieces: Sequence[Tensor], seal: Seal) -> Tensor:
    """Write an array atomically, replace an existing file, and map the result. OSError if the write fails."""
    file.parent.mkdir(parents=True, exist_ok=True)
    for abandoned in file.parent.glob(f".{file.name}.*{UNFINISHED}"):
        abandoned.unlink(missing_ok=True)
    unfinished = file.with_name(f".{file.name}.{uuid.uuid4().hex[:12]}{UNFINISHED}")
    try:
        with unfinished.open("xb") as out:
            out.write(array_header(entry.dtype, entry.shape))
            for piece in pieces:
                for _, chunk in row_chunks(Given.of(piece, file.name).values):
                    out.write(chunk.astype(STORED[entry.dtype], order="C", copy=False).data)
            out.flush()
            assert out.tell() == entry.bytes
            values = map_array(unfinished, entry)
            out.write(seal.text(digest(values, threads=_DIGEST_THREADS)))
            flush(out)
        unfinished.replace(file)
    finally:
        with suppress(OSError):
            unfinished.unlink(missing_ok=True)
    flush_entries(file.parent)
    return values


def sealed_problem(file: Path, name: str, fingerprint: str, source: Callable[[str], Source]) -> str | None:
    """Return the problem of a sealed array, or None; `source` describes a primary array by its file."""
    try:
        if file.is_symlink():
            raise ValueError("is a symbolic link")
        with file.open("rb") as opened:
            descr, shape = header_of(opened)
            entry = unchecked_entry(_LOGICAL[descr], shape)
            opened.seek(entry.bytes)
            stated = json.loads(opened.read(_LONGEST_SEAL))
            own = {primary: source(primary) for primary in stated["sources"]}
        if read_sealed(file, entry, Seal(name, fingerprint, own)) is None:
            raise ValueError("differs from its seal")
    except (ValueError, KeyError, TypeError, OverflowError, OSError, RecursionError, MemoryError):
        return "does not fit the digest at its end, or the arrays of graph.json that it was made from"
    return None
