"""Files in object stores: downloaded to the user's cache, and uploaded from there.

Each URL has a mirror, a path in the cache. All other modules use mirrors, which are local files. No mirror is
inside another one: those of s3://b/exp and s3://b/exp/run are in different folders. Files are compared by the
version (ETag) that the store has, and have sha256 digests. A mirror may have results that could not be
uploaded: they are uploaded, or moved away, before the mirror is staged again.

This module does not import torch, numpy or rich.
"""

from __future__ import annotations

import difflib
import fcntl
import hashlib
import io
import json
import os
import re
import shutil
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import partial
from glob import escape, has_magic
from importlib import import_module
from itertools import chain, count
from pathlib import Path
from tempfile import gettempdir
from threading import Event, Lock
from typing import Any, BinaryIO, TypeVar

from khop.graph.atomic import Meter, ProgressCallback, backup_of, check_disk, refuse_existing
from khop.graph.layout import BOOK, MANIFEST, SNAPSHOT_RECORD, is_plain
from khop.user_cache import cache_folder

# pyarrow's name of each scheme. Its default for Google retries for 15 minutes without a network.
_PYARROW = {"s3": "s3://{}", "gs": "gs://{}?retry_limit_seconds=30", "az": "abfss://{}.dfs.core.windows.net"}
_CREDENTIALS = {
    "s3": "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE",
    "gs": "set GOOGLE_APPLICATION_CREDENTIALS",
    "az": "set AZURE_CLIENT_ID, AZURE_TENANT_ID and AZURE_CLIENT_SECRET, or run az login",
}
_OTHERS = {"s3a": "s3", "s3n": "s3", "gcs": "gs", "abfs": "az", "abfss": "az", "wasb": "az", "azure": "az"}
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://(.*)", re.DOTALL)
_NO_NETWORK = re.compile(r"NETWORK_CONNECTION|REQUEST_TIMEOUT|curl|resolve|[Tt]imed? ?out|onnect|UNAVAILABLE")
_REFUSED = re.compile(
    r"ACCESS_DENIED|AccessDenied|INVALID_(ACCESS_KEY|CLIENT_TOKEN)|SIGNATURE|redential|HTTP status 40[13]"
    r"|UNAUTHENTICATED|PERMISSION_DENIED|UNRECOGNIZED_CLIENT|MISSING_AUTHENTICATION"
)
_CONTAINER = re.compile(r"[\w.$-]+(@[\w.-]+)?")
_CODE = re.compile(r"AWS Error (\w+)|HTTP status (\d+)")
_THREADS = 8
_DIGITS = 12  # of the version of a file, in the name of its interrupted download
_BLOCK = 8 << 20  # bytes
_TRIES = 5  # to read an index that a training replaces
_RECORD_S = 2.0  # seconds between writes of a record; files since then are read again after a kill
CONFIG, STATE = "config.toml", "state.json"  # a run folder and a checkpoint have these
INDEX = "checkpoints.json"  # of a run folder in a store: folder of a checkpoint -> the folder that it is in
_LAST = (INDEX, MANIFEST, BOOK, SNAPSHOT_RECORD)  # published last: without them a folder is not used
_GRAPHS = (MANIFEST, BOOK, SNAPSHOT_RECORD)
_FOLDERS = (*_GRAPHS, CONFIG)  # one of them is in each folder that is staged

Result = TypeVar("Result")


class StoreError(ValueError):
    """An object store refuses, or cannot be reached."""


def is_url(text: object) -> bool:
    """Return True for a URL of an object store; ValueError for a scheme that resembles one."""
    found = _URL.fullmatch(text) if isinstance(text, str) else None
    if found is None or found[1] in _PYARROW:
        return found is not None
    scheme = found[1].lower()
    near = _OTHERS.get(scheme) or next(iter(difflib.get_close_matches(scheme, _PYARROW, 1, 0.5)), None)
    if near is None:
        return False
    raise ValueError(
        f"{found[1]}://: unknown scheme; did you mean {near}://? khop reads s3://, gs:// and az://"
    )


def with_urls(text: str) -> str:
    """Replace the paths of mirrors in a text by their URLs."""
    schemes, mirrors = "|".join(_PYARROW), str(_mirrors())
    paths = "|".join(re.escape(path) for path in (mirrors, json.dumps(mirrors)[1:-1]))  # JSON has escapes
    return re.sub(rf"(?:{paths})/\d+/({schemes})/", r"\1://", text)


def _mirrors() -> Path:
    try:
        return cache_folder().absolute() / "stores"
    except RuntimeError:  # the user has no home folder
        return Path(gettempdir()) / f"khop-{os.getuid()}" / "stores"


@dataclass(frozen=True)
class Location:
    """A file, or a folder, in an object store."""

    scheme: str
    container: str  # the bucket; for Azure container@account
    key: str

    @classmethod
    def of(cls, url: str) -> Location:
        """Parse a URL; ValueError for one with credentials or options, or without a key."""
        scheme, rest = _URL.fullmatch(url).groups()  # type: ignore[union-attr]  # `is_url` is True
        container, _, key = rest.partition("/")
        account = container.partition("@")[2] if scheme == "az" else ""
        if ":" in container or ("@" in container) != bool(account):  # never print it
            raise ValueError(
                f"{scheme}://...: the URL has credentials; leave them out and {_CREDENTIALS[scheme]}"
            )
        if scheme == "az" and not account:
            raise ValueError(f"{url}: the storage account is missing; give az://CONTAINER@ACCOUNT/PATH")
        key = key.rstrip("/")
        if container and not _CONTAINER.fullmatch(container):
            raise ValueError(f"{scheme}://{container}: is not the name of a bucket; correct the URL")
        if not container or not key or {"", ".", ".."} & set(key.split("/")) or "?" in rest:
            raise ValueError(
                f"{url.partition('?')[0]}: give {scheme}://BUCKET/PATH, without options; settings of the "
                "store come from the environment, as AWS_ENDPOINT_URL"
            )
        return cls(scheme, container, key)

    @classmethod
    def at(cls, path: Path) -> Location | None:
        """Return the location that a path is the mirror of, or None."""
        path = path.absolute()
        parts = path.relative_to(_mirrors()).parts if path.is_relative_to(_mirrors()) else ()
        is_mirror = len(parts) > 3 and parts[0] == str(len(parts) - 3) and parts[1] in _PYARROW
        return cls(parts[1], parts[2], "/".join(parts[3:])) if is_mirror else None

    @property
    def mirror(self) -> Path:
        """Path of the mirror in the cache. Keys of one depth share a folder, so no mirror is in another."""
        depth = str(self.key.count("/") + 1)
        return _mirrors() / depth / self.scheme / self.container / self.key

    @property
    def url(self) -> str:
        """The URL, without a trailing slash."""
        return f"{self.scheme}://{self.container}/{self.key}".rstrip("/")

    @property
    def bucket(self) -> str:
        """The name of the bucket, or of the container."""
        return self.container.partition("@")[0]

    def opened(self) -> Store:
        """Return the store; pyarrow takes credentials from the environment."""
        try:
            file_systems = import_module("pyarrow.fs")
        except ImportError:
            raise ValueError(f"{self.url}: object stores need pyarrow: pip install pyarrow") from None
        with self.asking():
            found, _ = file_systems.FileSystem.from_uri(_PYARROW[self.scheme].format(self.container))
        return Store(self, found, file_systems)

    @contextmanager
    def asking(self) -> Iterator[None]:
        """Turn a pyarrow error into a StoreError without its text, which may contain credentials."""
        try:
            yield
        except StoreError:
            raise
        except (OSError, ValueError, import_module("pyarrow").ArrowException) as error:
            text, code = str(error), _CODE.search(str(error))
            reason = next((word for word in code.groups() if word), "") if code else type(error).__name__
            if "NO_SUCH_BUCKET" in text or "NoSuchBucket" in text:
                problem = f"there is no bucket {self.bucket!r}; make it, or correct the name"
            elif _REFUSED.search(text):
                problem = f"the store refuses access ({reason}); {_CREDENTIALS[self.scheme]}"
            elif _NO_NETWORK.search(text):
                problem = (
                    f"the store cannot be reached ({reason}); check the network and the "
                    "endpoint, and try again"
                )
            else:
                problem = f"the store answers with an error ({reason}); try again"
            raise StoreError(f"{self.url}: {problem}") from None


@dataclass(frozen=True)
class Store:
    """The object store of a location. File names are relative to it; "" is the location itself."""

    location: Location
    system: Any  # pyarrow.fs.FileSystem
    module: Any  # pyarrow.fs

    def path(self, name: str = "") -> str:
        """Return the path of a file, for pyarrow."""
        return "/".join(part for part in (self.location.bucket, self.location.key, name) if part)

    def files(self) -> dict[str, int]:
        """Return the bytes of each file by name; none if nothing is there. StoreError without a bucket."""
        kinds, base = self.module.FileType, self.path()
        with self.location.asking():
            if (whole := self.system.get_file_info(base)).type == kinds.File:
                return {"": whole.size}
            below = self.system.get_file_info(
                self.module.FileSelector(base, recursive=True, allow_not_found=True)
            )
            found = {one.path[len(base) + 1 :]: one.size for one in below if one.type == kinds.File}
            if not found and self.system.get_file_info(self.location.bucket).type == kinds.NotFound:
                raise StoreError(
                    f"{self.location.url}: there is no bucket {self.location.bucket!r}; make it, or correct "
                    "the name"
                )
        return {name: size for name, size in sorted(found.items()) if is_plain(name)}

    def open(self, name: str) -> tuple[Any, str]:
        """Open a file to read; also return its version."""
        with self.location.asking():
            file = self.system.open_input_file(self.path(name))
            known = {_text(key).lower(): _text(value) for key, value in (file.metadata() or {}).items()}
            return file, known.get("etag") or f"{file.size()} {known.get('last-modified', '')}"

    def write(self, name: str, file: BinaryIO, read: Callable[[int], None] | None = None) -> None:
        """Upload a new file atomically: after an error or Ctrl-C, it is not in the store."""
        with self.location.asking():
            stream = self.system.open_output_stream(self.path(name))
            try:
                while block := file.read(_BLOCK):
                    stream.write(block)
                    if read is not None:
                        read(len(block))
                stream.close()
            except BaseException:
                # pyarrow cannot abort: when the stream is freed, the bytes so far become the file.
                with suppress(OSError):
                    stream.close()
                with suppress(OSError):
                    self.system.delete_file(self.path(name))
                raise

    def replace(self, name: str, file: BinaryIO, read: Callable[[int], None] | None = None) -> None:
        """Upload a file of at most 5 GB atomically: after an error, the old one is still in the store."""
        folder, _, base = f"/{name}".rpartition("/")
        new = f"{folder}/.{base}.new".lstrip("/")
        self.write(new, file, read)
        try:
            with self.location.asking():
                self.system.copy_file(self.path(new), self.path(name))
        finally:
            with suppress(OSError):  # hidden files are not read
                self.system.delete_file(self.path(new))

    def remove(self, names: Iterable[str]) -> None:
        """Remove files."""
        with self.location.asking():
            for name in names:
                self.system.delete_file(self.path(name))

    def remove_folders(self, names: Iterable[str]) -> None:
        """Remove folders; of their files alone, S3 would keep an empty object for each folder."""
        with self.location.asking():
            for name in names:
                self.system.delete_dir(self.path(name))


def _text(value: str | bytes) -> str:
    return value if isinstance(value, str) else value.decode()


@dataclass(frozen=True)
class _File:
    """A file of a mirror with the same bytes as in the store."""

    version: str  # of the store
    bytes: int
    changed_ns: int  # of the local file
    sha256: str

    @classmethod
    def of(cls, path: Path, version: str, sha256: str) -> _File:
        there = path.stat()
        return cls(version, there.st_size, there.st_mtime_ns, sha256)

    def is_at(self, path: Path) -> bool:
        """Return True if the local file has not changed since."""
        try:
            there = path.stat()
        except FileNotFoundError:
            return False
        return (there.st_size, there.st_mtime_ns) == (self.bytes, self.changed_ns)


@dataclass
class _Record:
    """The files of a mirror by name, in a file next to all mirrors."""

    path: Path
    files: dict[str, _File] = field(default_factory=dict)
    _written_at: float = 0.0
    _lock: Lock = field(default_factory=Lock)

    @classmethod
    def of(cls, location: Location) -> _Record:
        """Read the record of a mirror; an empty one if there is none."""
        path = _next_to_mirrors(location, "json")
        try:
            files = {name: _File(*entry) for name, entry in json.loads(path.read_bytes()).items()}
        except (OSError, ValueError, TypeError, AttributeError):
            files = {}  # there is none, or it is damaged: files are read again
        return cls(path, files)

    def has(self, name: str, path: Path) -> bool:
        """Return True if the file is recorded and the one at `path` has not changed since."""
        return name in self.files and self.files[name].is_at(path)

    def add(self, name: str, file: _File) -> None:
        """Add a file that the mirror has now."""
        with self._lock:
            self.files[name] = file
            if time.monotonic() - self._written_at > _RECORD_S:
                self.write()

    def write(self) -> None:
        """Write the record."""
        new = self.path.with_suffix(".new")
        new.write_text(json.dumps({name: list(vars(file).values()) for name, file in self.files.items()}))
        new.replace(self.path)
        self._written_at = time.monotonic()


def _next_to_mirrors(location: Location, suffix: str) -> Path:
    name = hashlib.sha256(location.url.encode()).hexdigest()
    path = _mirrors() / "records" / f"{name}.{suffix}"
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Keep other processes from staging to a mirror while its files are written. Ignores other paths.

    ValueError if another process writes them.
    """
    location = Location.at(path)
    if location is None:
        yield
        return
    with ExitStack() as held:
        with _locked(location, "reader", lambda: None):  # readers have the other lock while they stage
            is_free = held.enter_context(_locked(location, "writer"))
        if not is_free:
            raise ValueError(f"{location.url}: another process of this machine writes it; wait until it ends")
        yield


@contextmanager
def _locked(location: Location, name: str, waiting: Callable[[], None] | None = None) -> Iterator[bool]:
    """Lock a mirror. If another process has the lock, call `waiting` and wait; without it, yield False."""
    lock = os.open(_next_to_mirrors(location, name), os.O_RDWR | os.O_CREAT, 0o600)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            is_locked = True
        except BlockingIOError:
            is_locked = waiting is not None
            if waiting is not None:
                waiting()
                fcntl.flock(lock, fcntl.LOCK_EX)
        yield is_locked
    finally:
        os.close(lock)


def _at_once(tasks: Sequence[Callable[[], Result]], stop: Event) -> list[Result]:
    """Return the results of tasks on a few threads, in order. Sets `stop` if one fails, or at Ctrl-C."""
    with ThreadPoolExecutor(_THREADS) as pool:
        futures = [pool.submit(task) for task in tasks]
        try:
            for future in as_completed(futures):
                future.result()
        except BaseException:
            stop.set()
            for future in futures:
                future.cancel()
            raise
    return [future.result() for future in futures]


def _in_turn(names: Iterable[str]) -> list[list[str]]:
    """Divide names into data files, and files that mark a folder, or a checkpoint, as complete."""
    names, last = list(names), (*_LAST, STATE)
    return [[n for n in names if Path(n).name not in last], [n for n in names if Path(n).name in last]]


def staged(url: str, notice: ProgressCallback | None = None) -> Path:
    """Return the mirror of a file, a graph folder or a run folder, with the bytes of the store.

    Only files that changed in the store since the last call are downloaded. An interrupted download
    continues. A folder that a process of this machine is writing is used unchanged. ValueError if nothing is
    there, or for files with other digests than graph.json has.
    """

    def refuse(location: Location, found: Mapping[str, int]) -> None:
        if not found:
            raise ValueError(f"{location.url}: nothing is there; correct the path")
        if "" not in found and not set(_FOLDERS) & found.keys():
            raise ValueError(
                f"{location.url}: neither a file, nor a graph folder, nor a run folder: it has none of "
                f"{', '.join(_FOLDERS)}"
            )

    return _staged(Location.of(url), refuse, notice)


def local_path(path: str) -> Path:
    """Return the mirror of a URL, staged, or the path itself."""
    return staged(path) if is_url(path) else Path(path)


def target(url: str, notice: ProgressCallback | None = None) -> Path:
    """Return the mirror of a file or folder to write, with the files that the store already has.

    Files that are no longer in the store are removed from the mirror, unless a process is writing them.
    """

    def refuse(location: Location, found: Mapping[str, int]) -> None:
        if not set(_FOLDERS) & found.keys():
            _refuse_existing(location, found)

    location = Location.of(url)
    location.mirror.parent.mkdir(parents=True, exist_ok=True)
    return _staged(location, refuse, notice)


def refuse_existing_in_store(path: Path) -> None:
    """Raise ValueError if a folder to write exists, also in the store that it is a mirror of."""
    location = Location.at(path)
    if location is not None:
        _staged(location, _refuse_existing, None)
    refuse_existing(path)


def _refuse_existing(location: Location, found: Mapping[str, int]) -> None:
    if "" in found:
        raise ValueError(f"{location.url}: exists already; remove it or choose another name")
    if found:
        raise ValueError(f"{location.url}: the folder is not empty; remove it or choose another name")


def is_there(folder: Path) -> bool:
    """Return True if a folder exists; for a mirror, if the store has it, or a file of its name."""
    location = Location.at(folder)
    return folder.is_dir() if location is None else bool(location.opened().files())


def matches(pattern: str, notice: ProgressCallback | None = None) -> list[Path]:
    """Return the staged mirrors of the files that match a URL with *, **, ? or [, sorted by name."""
    if not has_magic(pattern) or re.search(r"\?[^/]*=", pattern):  # options, which `Location.of` refuses
        return [staged(pattern, notice)]
    folder = re.split(r"[*?\[]", pattern)[0].rpartition("/")[0]
    if not is_url(folder):
        raise ValueError(f"{pattern}: *, ? and [ are for paths; give the name of the bucket")
    below, rest = Location.of(f"{folder}/any"), pattern[len(folder) + 1 :]
    location = replace(below, key=below.key.rpartition("/")[0])  # "" for the bucket itself
    found = location.opened().files()
    names = [rest] if rest in found else [n for n in found if _matches(n.split("/"), rest.split("/"))]
    if not names:
        raise ValueError(f"{pattern}: no file matches")
    return [staged(f"{location.url}/{name}", notice) for name in names]


def _matches(name: Sequence[str], pattern: Sequence[str]) -> bool:
    """Return True if the parts of a name match; ** matches any number of folders, as in `glob.glob`."""
    if not pattern:
        return not name
    if pattern[0] == "**" and _matches(name, pattern[1:]):
        return True
    is_next = bool(name) and (pattern[0] == "**" or fnmatchcase(name[0], pattern[0]))
    return is_next and _matches(name[1:], pattern[pattern[0] != "**" :])


def _staged(
    location: Location, refuse: Callable[[Location, Mapping[str, int]], None], notice: ProgressCallback | None
) -> Path:
    """Save the results of a mirror, stage it, and return it. `refuse` gets the files of the store.

    The files are listed, results are saved, and the mirror is changed under both locks. A mirror that a
    process is writing is left unchanged.
    """
    store = location.opened()
    waiting = partial(Meter(0, notice).at, f"waiting for the process that reads {location.url}")
    with (
        _locked(location, "reader", waiting),  # first: readers wait only for each other
        _locked(location, "writer") as is_free,
    ):
        found = store.files()
        if is_free:
            _undo_renames(location.mirror)
        if is_free and _has_results(location):
            _save_results(store, found, notice)
            found = store.files()
        refuse(location, found)
        if is_free:
            _update(store, found, notice)
    return location.mirror


def _update(store: Store, found: Mapping[str, int], notice: ProgressCallback | None) -> None:
    """Change a mirror without results to the files of the store."""
    location = store.location
    record, sources, stop = _Record.of(location), _sources(store, found), Event()
    new = {name for name in sources if not record.has(name, _at(location, name))}
    sizes = {name: found[sources[name]] for name in new}
    begun = {name: sum(part.stat().st_size for part in _parts(_at(location, name))) for name in new}
    missing = sum(size - min(size, begun[name]) for name, size in sizes.items())
    check_disk(location.mirror, missing, location.url)
    was_interrupted = _mark(location).exists()
    _mark(location).touch()  # before the first change: from now on, other files are not results
    if not found or location.mirror.is_file() != ("" in found):
        _remove(location.mirror)
        record.files.clear()
    meter = Meter(sum(found[source] for source in sources.values()), notice)
    read = partial(_downloaded, store, record, meter, stop)
    try:
        changed = [
            is_changed
            for names in _in_turn(sources)
            for is_changed in _at_once([partial(read, name, sources[name]) for name in names], stop)
        ]
        _remove_others(location, record, sources, is_changed=was_interrupted or any(changed))
    finally:
        record.write()
    _check_digests(location, record)
    _mark(location).unlink()


def _has_results(location: Location) -> bool:
    """Return True if a mirror has files that are results, and are not in the store as they are now."""
    mirror, record = location.mirror, _Record.of(location)
    if _mark(location).exists():  # an interrupted download left other files
        return False
    names = [""] if mirror.is_file() else _names(mirror)
    if set(_GRAPHS) & set(names):  # Derived arrays are not results. A graph is uploaded if its last file is.
        names = [name for name in names if Path(name).name in _LAST]
    return not all(record.has(name, _at(location, name)) for name in names)


def _save_results(store: Store, found: Mapping[str, int], notice: ProgressCallback | None) -> None:
    """Upload results if they continue what the store has, and move them away otherwise."""
    location = store.location
    if _continues(store, _Record.of(location), found):
        publish(location.mirror, notice)
        done = "are uploaded now"
    else:
        free = _free(_mirrors() / "unpublished" / location.mirror.relative_to(_mirrors()))
        free.parent.mkdir(parents=True, exist_ok=True)
        location.mirror.rename(free)
        done = f"are in {free}"
    warnings.warn(f"{location.url}: results that an earlier command did not upload {done}", stacklevel=1)


def _continues(store: Store, record: _Record, found: Mapping[str, int]) -> bool:
    """Return True if a mirror is a run or a graph, and what the store has is an earlier state of it.

    After a kill, the store may have files of the mirror that are not in the record.
    """
    names = set(_names(store.location.mirror))
    if CONFIG in names:
        recorded = {
            _folder(name): _stored(name, file.sha256)
            for name, file in record.files.items()
            if _is_state(name)
        }
        is_known = _index(store, found) in (recorded, _index_of(store.location.mirror))
        if CONFIG not in found:
            return is_known and CONFIG not in record.files
        return is_known and (_is_recorded(store, record, CONFIG) or _is_in_store(store, CONFIG))
    last = found.keys() & set(_GRAPHS)
    return bool(names & set(_GRAPHS)) and found.keys() <= names and all(_is_in_store(store, n) for n in last)


def _undo_renames(mirror: Path) -> None:
    """Give checkpoints their names back that were renamed by a writer that was killed."""
    for backup in mirror.rglob(backup_of(Path("*")).name):
        folder = backup.with_name(backup.name.removeprefix(".").removesuffix(backup.suffix))
        if not folder.exists():
            backup.rename(folder)


def _names(folder: Path) -> list[str]:
    names = (str(path.relative_to(folder)) for path in sorted(folder.rglob("*")) if path.is_file())
    return [name for name in names if is_plain(name)]


def _mark(location: Location) -> Path:
    """Return the file that exists while files of the mirror are downloaded, and after an interruption."""
    return _next_to_mirrors(location, "partial")


def _at(location: Location, name: str) -> Path:
    assert not name or is_plain(name)  # of a store's names, none leaves the mirror
    return location.mirror / name if name else location.mirror


def _sources(store: Store, found: Mapping[str, int]) -> dict[str, str]:
    """Return the name in the store of each file of the mirror. The index of a run names its checkpoints."""
    if INDEX not in found:
        return {name: name for name in found}
    index = _index(store, found)
    plain = {name: name for name in found if name != INDEX and not _AT.fullmatch(name)}
    of_checkpoints = {
        f"{folder}/{Path(name).name}": name
        for folder, there in index.items()
        for name in found
        if _folder(name) == there
    }
    return plain | of_checkpoints


def _is_recorded(store: Store, record: _Record, name: str) -> bool:
    """Return True if the store has the recorded version of a file."""
    file, version = store.open(name)
    file.close()
    return name in record.files and record.files[name].version == version


def _is_in_store(store: Store, name: str) -> bool:
    """Return True if the store has the bytes of a file of the mirror."""
    file, _ = store.open(name)
    with file, store.location.asking():
        return bool(file.read() == _at(store.location, name).read_bytes())


def _index(store: Store, found: Mapping[str, int]) -> dict[str, str]:
    """Return the folder in the store of each checkpoint of a run."""
    if INDEX not in found:
        return {}
    for _ in range(_TRIES):
        file, version = store.open(INDEX)
        with file, store.location.asking():
            content = file.read()
        again, now = store.open(INDEX)
        again.close()
        if now == version:  # otherwise the bytes may be of both versions
            return _checked_index(store.location, content)
    raise StoreError(f"{store.location.url}: {INDEX} changes while it is read; wait until its training ends")


def _checked_index(location: Location, content: bytes) -> dict[str, str]:
    """Return the content of an index. StoreError unless all names are those of checkpoints in the run."""
    with suppress(ValueError, RecursionError):
        index = json.loads(content)
        if isinstance(index, dict) and all(_is_stored_at(*names) for names in index.items()):
            return index
    raise StoreError(f"{location.url}: {INDEX} is not what khop writes; remove it, or upload the run again")


def _is_stored_at(folder: str, there: object) -> bool:
    """Return True if a store may have a checkpoint of this folder there."""
    is_stored = isinstance(there, str) and _AT.fullmatch(f"{there}/{STATE}") is not None
    return is_stored and is_plain(folder) and _folder(folder) == _folder(str(there))


def _index_of(mirror: Path) -> dict[str, str]:
    """Return the folder in the store of each checkpoint of a mirror."""
    states = filter(_is_state, _names(mirror))
    return {_folder(name): _stored(name, _sha256(mirror / name)) for name in states}


def _downloaded(store: Store, record: _Record, meter: Meter, stop: Event, name: str, source: str) -> bool:
    """Download a file unless the mirror has it; return True if it was downloaded."""
    location = store.location
    path, known = _at(location, name), record.files.get(name)
    what = f"reading {name or location.url}"
    file, version = store.open(source)
    with file:
        if known is not None and known.is_at(path) and known.version == version:
            meter.at(what, known.bytes)
            return False
        path.parent.mkdir(parents=True, exist_ok=True)
        mark = hashlib.sha256(version.encode()).hexdigest()[:_DIGITS]
        part = path.with_name(f".{path.name}.{mark}.part")
        for other in _parts(path) - {part}:  # of other versions
            other.unlink(missing_ok=True)
        digest = hashlib.sha256()
        with part.open("a+b") as written:
            written.seek(0)
            while block := written.read(_BLOCK):
                digest.update(block)
                meter.at(what, len(block))
            with location.asking():
                file.seek(written.tell())
            while not stop.is_set() and (block := _block(location, file)):
                written.write(block)
                digest.update(block)
                meter.at(what, len(block))
            written.flush()
            os.fsync(written.fileno())
    if stop.is_set():
        return False
    again, now = store.open(source)
    again.close()
    if now != version:  # the bytes may be of both versions
        part.unlink()
        raise StoreError(f"{location.url}: {name or 'it'} changed while it was read; try again")
    if name and path.name not in _LAST:  # until all files are replaced, the folder does not open
        for last in _LAST:
            _at(location, last).unlink(missing_ok=True)
    part.replace(path)
    record.add(name, _File.of(path, version, digest.hexdigest()))
    return True


def _parts(path: Path) -> set[Path]:
    """Return the files of interrupted downloads of a file, of any version."""
    return set(path.parent.glob(f".{escape(path.name)}.{'[0-9a-f]' * _DIGITS}.part"))


def _block(location: Location, file: Any) -> bytes:  # noqa: ANN401  # pyarrow has no types
    with location.asking():
        return bytes(file.read(_BLOCK))


def _remove_others(
    location: Location, record: _Record, sources: Mapping[str, str], *, is_changed: bool
) -> None:
    """Remove files that are no longer in the store, and files derived from changed ones."""
    gone = record.files.keys() - sources.keys()
    for name in gone:
        _at(location, name).unlink(missing_ok=True)
        del record.files[name]
    if not (is_changed or gone) or not location.mirror.is_dir():
        return
    for path in sorted(location.mirror.rglob("*"), reverse=True):
        if path.is_dir() and not path.is_symlink():
            if not any(path.iterdir()):
                path.rmdir()
        elif str(path.relative_to(location.mirror)) not in sources:
            path.unlink()


def _check_digests(location: Location, record: _Record) -> None:
    """Compare the digests of staged files with those in graph.json, of a graph or of its parts."""
    for name in record.files:
        folder, _, file = f"/{name}".rpartition("/")
        if file != MANIFEST:
            continue
        for array, sha256 in _digests(_at(location, name)).items():
            whole = f"{folder}/{array}".lstrip("/")
            if whole in record.files and record.files[whole].sha256 != sha256:
                _remove(location.mirror)
                raise ValueError(
                    f"{location.url}/{whole}: digest differs from {MANIFEST}: it was changed or "
                    "damaged, or the upload was not finished; upload the graph again"
                )


def _digests(manifest: Path) -> dict[str, str]:
    """Return the array digests of a graph.json; none if it is damaged, which opening the graph reports."""
    try:
        return {file: entry["sha256"] for file, entry in json.loads(manifest.read_bytes())["arrays"].items()}
    except (ValueError, KeyError, TypeError, AttributeError):
        return {}


def publish(path: Path, notice: ProgressCallback | None = None) -> None:
    """Upload the changed files of a mirror, and remove deleted ones from the store.

    Does nothing for other paths. A reader of the store finds a graph folder only once it is complete, and a
    run folder with either the old or the new checkpoints. StoreError if another machine writes the same graph
    folder: of two concurrent writers, either one gets an error, or the later one replaces all files.
    """
    location = Location.at(path)
    if location is None or not path.is_dir():
        return
    store, record = location.opened(), _Record.of(location)
    names, index, there = _names(path), _index_of(path), store.files()
    is_run = CONFIG in names
    if not is_run:
        _refuse_other_graph(store, names, there)
    sources = {
        name: f"{index[of]}/{Path(name).name}" if (of := _folder(name)) in index else name for name in names
    }
    changed = [name for name in names if sources[name] not in there or not record.has(name, path / name)]
    # A file of a checkpoint is complete if it has all bytes: an upload that stopped may have left the first.
    known = [
        name
        for name in changed
        if _AT.fullmatch(sources[name]) and there.get(sources[name]) == (path / name).stat().st_size
    ]
    new = [name for name in changed if name not in known]
    meter, stop = Meter(sum((path / name).stat().st_size for name in new), notice), Event()
    states = {name: record.files[name] for name in set(names) - set(changed) if _is_state(name)}

    def saved(name: str) -> None:
        write = store.replace if is_run and sources[name] in there else store.write
        file = _uploaded(store, None if name in known else write, meter, stop, name, sources[name])
        if _is_state(name):
            states[name] = file
        else:
            record.add(name, file)

    try:
        for turn in [known, *_in_turn(new)]:
            _at_once([partial(saved, name) for name in turn], stop)
            if turn and not is_run:
                _check_written(store, record, stop)
        if index:
            store.replace(INDEX, io.BytesIO(json.dumps(index, indent=1).encode()))
        # Only now: `_continues` compares the recorded checkpoints with the index.
        record.files = {name: file for name, file in record.files.items() if not _is_state(name)} | states
        if index:
            store.remove_folders({_folder(n) for n in there if _AT.fullmatch(n)} - set(index.values()))
            store.remove(name for name in record.files if name in there and name not in sources)
        record.files = {name: file for name, file in record.files.items() if name in sources}
    finally:
        record.write()


def _refuse_other_graph(store: Store, names: Sequence[str], there: Mapping[str, int]) -> None:
    """Raise StoreError if the store has a complete graph that is not the one of the mirror."""
    marks = set(_GRAPHS) & there.keys()
    if not all(name in names and _is_in_store(store, name) for name in marks):
        raise StoreError(
            f"{store.location.url}: another machine has written a graph there; it is not overwritten; choose "
            "another name"
        )


def _check_written(store: Store, record: _Record, stop: Event) -> None:
    """Raise StoreError if another machine has replaced files that were uploaded."""
    names = sorted(record.files)
    kept = _at_once([partial(_is_recorded, store, record, name) for name in names], stop)
    if not all(kept):
        other = names[kept.index(False)]
        raise StoreError(
            f"{store.location.url}: another machine writes the same folder, and {other} is its file now; "
            "remove the folder from the store, and write again from one machine"
        )


# A folder of a checkpoint in a store, by the digest of its state.json: it is written once, and never changed.
_AT = re.compile(r"(.*/)?at-[0-9a-f]{16}/[^/]+")


def _stored(state: str, sha256: str) -> str:
    """Return the folder in the store of the checkpoint with this state.json."""
    return f"{_folder(_folder(state))}/at-{sha256[:16]}".lstrip("/")


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _folder(name: str) -> str:
    return name.rpartition("/")[0]


def _is_state(name: str) -> bool:
    return Path(name).name == STATE


def _uploaded(
    store: Store,
    write: Callable[[str, BinaryIO, Callable[[int], None]], None] | None,
    meter: Meter,
    stop: Event,
    name: str,
    source: str,
) -> _File:
    """Upload a file unless it is there, and return its entry; a later change is seen by its time."""
    path = store.location.mirror / name
    before = path.stat()

    def read(size: int) -> None:
        if stop.is_set():
            raise StoreError(f"{store.location.url}: the upload was stopped")
        meter.at(f"writing {name}", size)

    if write is not None:
        with path.open("rb") as file:
            write(source, file, read)
    there, version = store.open(source)
    there.close()
    return _File(version, before.st_size, before.st_mtime_ns, _sha256(path))


def publish_files(files: Sequence[Path], notice: ProgressCallback | None = None) -> None:
    """Upload files of mirrors, and remove them from the cache. Does nothing for other paths.

    If an upload fails, the files are moved to the current folder, which the error names, so results are not
    lost.
    """
    new = [path for path in files if Location.at(path) is not None]
    meter = Meter(sum(path.stat().st_size for path in new), notice)
    for at, path in enumerate(new):
        location = Location.at(path)
        assert location is not None
        try:
            store = location.opened()
            if store.files():
                raise StoreError(f"{location.url}: was written by another process; it is not overwritten")
            with path.open("rb") as file:
                store.write("", file, partial(meter.at, f"writing {location.url}"))
        except StoreError as error:
            raise kept(new[at:], error) from None
        path.unlink(missing_ok=True)


def kept(paths: Iterable[Path], error: StoreError) -> StoreError:
    """Move results from the cache to the current folder; return the error with their new paths."""
    moved = [str(shutil.move(path, _free(Path(path.name)))) for path in paths]
    return StoreError(f"{error}. The result is in {', '.join(moved)}")


def _remove(mirror: Path) -> None:
    if mirror.is_dir():
        shutil.rmtree(mirror, ignore_errors=True)
    else:
        mirror.unlink(missing_ok=True)


def _free(path: Path) -> Path:
    """Return the path, or one with a number added if the path exists."""
    numbered = (path.with_name(f"{path.stem}-{number}{path.suffix}") for number in count(1))
    return next(name for name in chain([path], numbered) if not name.exists())
