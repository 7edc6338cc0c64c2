"""Arrays computed from a graph on first use and stored in its folder.

A derived file ends with a seal: a digest of its data, and the arrays that it was computed from.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import uuid
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from threading import Lock
from types import MappingProxyType

import torch
from torch import Tensor

from khop.errors import REMEDY
from khop.graph.atomic import UNFINISHED, flush_entries
from khop.graph.folder import refuse_other
from khop.graph.inputs import Given
from khop.graph.npy import (
    STORED,
    ArrayEntry,
    array_header,
    file_checksum,
    flush,
    header_of,
    map_array,
    row_chunks,
    unchecked_entry,
)
from khop.kernels.philox import digest

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
        """Return the seal for data with digest `xxh64`; its length does not depend on the digest."""
        content = {"format": FORMAT, **asdict(self), "xxh64": xxh64}
        return b"\n" + json.dumps(content, sort_keys=True).encode("ascii") + b"\n"


def source_of(file: Path, entry: ArrayEntry) -> Source:
    """Describe a primary array for a seal. Reads the whole file, at several GB/s."""
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


FOLDER = "derived"
_FILE_BEFORE = "array.npy"  # in a separate folder, as stored by khop before seals existed
_MADE_AGAIN = "it is recomputed when it is next needed, or remove it"


class Derived:
    """Derived arrays of one graph, each computed once.

    An array is computed once per process, or once for all processes if the folder is writable. Threads may
    share the object. Other threads and processes wait while one of them computes an array. Files are written
    atomically and bound to the fingerprint of their graph. All bytes of a file are checked when this object
    first uses it. A damaged file is computed again, with a warning. A `make` function must not request
    another derived array.
    """

    def __init__(
        self,
        path: Path | None = None,
        fingerprint: str = "",
        arrays: Mapping[str, ArrayEntry] = MappingProxyType({}),
    ) -> None:
        self._path = path
        self._fingerprint = fingerprint
        self._arrays = arrays  # the primary arrays, by file relative to `path`
        self._made: dict[str, Tensor] = {}
        self._sources: dict[str, Source] = {}  # primary files of requested derived arrays
        self._sound: set[str] = set()  # primary files with verified checksums
        self._lock = Lock()

    def vector(
        self,
        name: str,
        count: int,
        make: Callable[[], Tensor],
        sources: Collection[str],
        dtype: str = "int64",
    ) -> Tensor:
        """Return the vector `name` with `count` entries; `name` is relative to the folder of derived arrays.

        `sources` are the primary files that the vector is computed from. Names without a file are ignored.
        ValueError if one of the files differs from graph.json, or if the graph was compacted since it was
        opened.
        """
        return self.joined(name, count, lambda: [make()], sources, dtype)

    def joined(
        self,
        name: str,
        count: int,
        make: Callable[[], Sequence[Tensor]],
        sources: Collection[str],
        dtype: str = "int64",
    ) -> Tensor:
        """Return a vector that `make` yields in pieces.

        If the vector can be stored, it is never entirely in memory.
        """
        with self._lock:
            if name not in self._made:
                if self._path is None:
                    self._made[name] = _whole(make())
                else:
                    refuse_other(self._path, self._fingerprint)
                    known = {file: self._source(self._path, file) for file in sources if file in self._arrays}
                    seal = Seal(name, self._fingerprint, known)
                    self._made[name] = self._kept(self._path, seal, unchecked_entry(dtype, (count,)), make)
            return self._made[name]

    def check_sources(self, sources: Collection[str], seen: str = "") -> None:
        """Raise ValueError that names a primary file that differs from graph.json.

        `seen` is the problem that was noticed; the error includes it. For a graph in memory nothing is
        checked.
        """
        for file in sources:
            if self._path is None or file in self._sound or file not in self._arrays:
                continue
            if file_checksum(self._path / file, lambda _: None) != self._arrays[file].sha256:
                problem = f"checksum differs from graph.json{': ' if seen else ''}{seen}"
                raise ValueError(f"{self._path / file}: {problem}; {REMEDY}")
            self._sound.add(file)

    def _kept(
        self, path: Path, seal: Seal, entry: ArrayEntry, make: Callable[[], Sequence[Tensor]]
    ) -> Tensor:
        home = home_of(path, self._fingerprint)
        file = home / f"{seal.name}.npy"
        if link := _link_above(path, file):
            warnings.warn(
                f"{link}: is a symbolic link, which khop does not follow for derived arrays; "
                "they stay in memory. Replace the link by a folder, or remove it",
                stacklevel=2,
            )
            return _whole(self._made_of(seal, make))
        if (found := read_sealed(file, entry, seal)) is not None:
            return found
        with _alone(home):
            if (found := read_sealed(file, entry, seal)) is not None:
                return found  # written by another process since the first look
            pieces = self._made_of(seal, make)
            if os.path.lexists(file):
                warnings.warn(f"{file}: was damaged, or made from other data; it is recomputed", stacklevel=2)
            try:
                kept = write_sealed(file, entry, pieces, seal)
            except OSError:  # read-only or full: this process keeps the array in memory
                return _whole(pieces)
            if (home / seal.name / _FILE_BEFORE).is_file():
                shutil.rmtree(home / seal.name, ignore_errors=True)
            return kept

    def _made_of(self, seal: Seal, make: Callable[[], Sequence[Tensor]]) -> Sequence[Tensor]:
        """Call `make`, and check the primary files, so that results from damaged files are not stored."""
        try:
            pieces = make()
        except (ValueError, IndexError, RuntimeError) as error:
            self.check_sources(seal.sources, str(error))
            raise
        self.check_sources(seal.sources)
        return pieces

    def _source(self, path: Path, file: str) -> Source:
        if file not in self._sources:
            self._sources[file] = source_of(path / file, self._arrays[file])
        return self._sources[file]


def home_of(path: Path, fingerprint: str) -> Path:
    """Return the folder of the arrays derived from a graph."""
    return path / FOLDER / fingerprint[:16]


def derived_problems(
    path: Path, fingerprint: str, arrays: Mapping[str, ArrayEntry], read: Callable[[str, int], None]
) -> Iterator[tuple[str, str]]:
    """Yield (file, problem) for each faulty derived array of a graph.

    `read` is called with each file and its size in bytes.
    """
    source = cache(lambda file: source_of(path / file, arrays[file]))
    home = home_of(path, fingerprint)
    if link := _link_above(path, home / "any"):
        yield str(link.relative_to(path)), "is a symbolic link, which khop does not follow; remove it"
        return
    for file in derived_files(path, fingerprint):
        name, size = str(file.relative_to(path)), file.lstat().st_size
        own = file.relative_to(home).with_suffix("")
        if problem := sealed_problem(file, str(own), fingerprint, source):
            yield name, f"{problem}; {_MADE_AGAIN}"
        read(name, size)


def derived_files(path: Path, fingerprint: str) -> list[Path]:
    """Return the files of the stored derived arrays of a graph, sorted."""
    files = home_of(path, fingerprint).rglob("*.npy")
    return sorted(file for file in files if file.name != _FILE_BEFORE and not file.name.endswith(UNFINISHED))


def _link_above(path: Path, file: Path) -> Path | None:
    """Return the first symbolic link on the path from the graph's folder to a file."""
    between = list(file.relative_to(path).parents)[-2::-1]
    return next((path / folder for folder in between if (path / folder).is_symlink()), None)


@contextmanager
def _alone(home: Path) -> Iterator[None]:
    """Run the block in one process at a time, if the file system supports locks.

    Without locks several processes may compute the same array.
    """
    with ExitStack() as stack:
        with suppress(OSError):
            home.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(home, os.O_RDONLY)
            stack.callback(os.close, descriptor)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield


def _whole(pieces: Sequence[Tensor]) -> Tensor:
    return pieces[0] if len(pieces) == 1 else torch.cat(list(pieces))
