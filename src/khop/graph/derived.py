"""Arrays that are computed from a graph when they are first needed, and kept in its folder."""

from __future__ import annotations

import fcntl
import os
import shutil
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from pathlib import Path
from threading import Lock
from types import MappingProxyType

import torch
from torch import Tensor

from khop.graph.atomic import UNFINISHED
from khop.graph.manifest import REMEDY
from khop.graph.npy import ArrayEntry, file_checksum, unchecked_entry
from khop.graph.sealed import Seal, Source, read_sealed, sealed_problem, source_of, write_sealed

FOLDER = "derived"
_FILE_BEFORE = "array.npy"  # in a folder of its own: how khop kept an array before it had a seal
_MADE_AGAIN = "it is made anew when it is next needed, or remove it"


class Derived:
    """Makes each array once: per process, and of a folder that can be written to once for all processes.

    Threads may share it; they and other processes wait for the one that makes an array. A file appears whole
    or not at all, belongs to the fingerprint of its graph, and is checked, every byte of it, when this object
    first uses it: one that is damaged is made anew, with a warning. No `make` asks for another array.
    """

    def __init__(
        self,
        path: Path | None = None,
        fingerprint: str = "",
        arrays: Mapping[str, ArrayEntry] = MappingProxyType({}),
    ) -> None:
        self._path = path
        self._fingerprint = fingerprint
        self._arrays = arrays  # the primary ones, by file relative to `path`
        self._made: dict[str, Tensor] = {}
        self._sources: dict[str, Source] = {}  # primary files that something was asked for of
        self._sound: set[str] = set()  # primary files that fit their checksums
        self._lock = Lock()

    def vector(
        self,
        name: str,
        count: int,
        make: Callable[[], Tensor],
        sources: Collection[str],
        dtype: str = "int64",
    ) -> Tensor:
        """The vector of `count` entries called `name`, relative to the folder of derived arrays.

        `sources` are the primary files that it follows from; names without such a file do not matter.
        ValueError where one of them is not what graph.json says.
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
        """A vector whose pieces `make` gives. Where it can be kept it is never in memory as a whole."""
        with self._lock:
            if name not in self._made:
                if self._path is None:
                    self._made[name] = _whole(make())
                else:
                    known = {file: self._source(self._path, file) for file in sources if file in self._arrays}
                    seal = Seal(name, self._fingerprint, known)
                    self._made[name] = self._kept(self._path, seal, unchecked_entry(dtype, (count,)), make)
            return self._made[name]

    def check_sources(self, sources: Collection[str], seen: str = "") -> None:
        """ValueError that names a primary file that is not what graph.json says, with the problem `seen`.

        Nothing is checked of a graph in memory.
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
                f"{link}: is a symbolic link, and khop neither reads nor writes derived arrays through one; "
                "they stay in memory. Put a folder in its place, or remove it",
                stacklevel=2,
            )
            return _whole(self._made_of(seal, make))
        if (found := read_sealed(file, entry, seal)) is not None:
            return found
        with _alone(home):
            if (found := read_sealed(file, entry, seal)) is not None:
                return found  # by another process, meanwhile
            pieces = self._made_of(seal, make)
            if os.path.lexists(file):
                warnings.warn(f"{file}: was damaged, or made from other data; it is made anew", stacklevel=2)
            try:
                kept = write_sealed(file, entry, pieces, seal)
            except OSError:  # read-only, or full: this process has it in memory
                return _whole(pieces)
            if (home / seal.name / _FILE_BEFORE).is_file():
                shutil.rmtree(home / seal.name, ignore_errors=True)
            return kept

    def _made_of(self, seal: Seal, make: Callable[[], Sequence[Tensor]]) -> Sequence[Tensor]:
        """What `make` gives, of primary files that are what graph.json says: else damage would be kept."""
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
    """Where the arrays derived from a graph lie."""
    return path / FOLDER / fingerprint[:16]


def derived_problems(
    path: Path, fingerprint: str, arrays: Mapping[str, ArrayEntry], read: Callable[[str, int], None]
) -> Iterator[tuple[str, str]]:
    """(file, what is wrong) of all that was derived from a graph; `read` hears each file and its bytes."""
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
    """The arrays that are kept of those derived from a graph, sorted."""
    files = home_of(path, fingerprint).rglob("*.npy")
    return sorted(file for file in files if file.name != _FILE_BEFORE and not file.name.endswith(UNFINISHED))


def _link_above(path: Path, file: Path) -> Path | None:
    """The first symbolic link among the folders between that of the graph and a file."""
    between = list(file.relative_to(path).parents)[-2::-1]
    return next((path / folder for folder in between if (path / folder).is_symlink()), None)


@contextmanager
def _alone(home: Path) -> Iterator[None]:
    """One process after another, where the file system knows locks: else several may make the same."""
    with ExitStack() as stack:
        with suppress(OSError):
            home.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(home, os.O_RDONLY)
            stack.callback(os.close, descriptor)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield


def _whole(pieces: Sequence[Tensor]) -> Tensor:
    return pieces[0] if len(pieces) == 1 else torch.cat(list(pieces))
