"""Files of public datasets: resumable downloads with checksums, archives, and the folder of a dataset."""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import stat
import tarfile
import urllib.error
import urllib.request
import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

from khop.data.importers import ImportContext, PublishedSet
from khop.data.tables.read_spec import nearest
from khop.graph.atomic import Meter, ProgressCallback, check_disk, new_folder
from khop.user_cache import cache_folder

AnySet = TypeVar("AnySet")
_BLOCK = 1 << 20
_ATTEMPTS = 5
_TIMEOUT_S = 60.0
_PARTIAL, _REST_UNKNOWN = 206, 416
MOST_EXPANSION = 100  # bytes of the members / bytes of the archive
_LEAST_LIMIT = 64 << 20
_MOST_MEMBERS = 1_000_000
_BY_HAND = "download the set yourself and give its folder by --root"


def download(url: str, target: Path, md5: str | None = None, notice: ProgressCallback | None = None) -> None:
    """Download `url` to `target`, unless it exists.

    An interrupted download continues at the next call if the server still has the same file, else it starts
    again. The connection is tried five times. `target` is written atomically; TARGET.json next to it records
    url, size and sha256. ValueError for an error of the server, and for a file with another `md5`.
    """
    record = target.with_name(f"{target.name}.json")
    if target.is_file() and record.is_file():
        return
    if not url.startswith(("http://", "https://")):
        raise ValueError(f"{url}: only http and https addresses are downloaded")
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f"{target.name}.part")
    _complete(url, part, notice)
    if md5 is not None and (found := _digest(part, "md5")) != md5:
        part.unlink()
        raise ValueError(
            f"{url}: its md5 is {found}, the publisher's is {md5}: the file was changed or damaged; try "
            f"again later, or {_BY_HAND}"
        )
    facts = {"url": url, "bytes": part.stat().st_size, "sha256": _digest(part, "sha256")}
    record.write_text(json.dumps(facts, indent=1))
    _version(part).unlink(missing_ok=True)
    part.replace(target)


def _digest(path: Path, algorithm: str) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, algorithm).hexdigest()


def _complete(url: str, part: Path, notice: ProgressCallback | None) -> None:
    """Append to `part` until it is complete."""
    problem = "the connection ended too early"
    for _ in range(_ATTEMPTS):
        try:
            if _append(url, part, notice):
                return
            problem = "the connection ended too early"
        except urllib.error.HTTPError as error:
            raise ValueError(f"{url}: the server returned {error.code} {error.reason}; {_BY_HAND}") from None
        except (http.client.HTTPException, ConnectionResetError):
            problem = "the connection ended too early"
        except OSError as error:
            if part.exists() and error.filename is not None:  # of the disk
                raise
            is_late = "timed out" in str(error)
            problem = f"no answer within {_TIMEOUT_S} s" if is_late else "the server cannot be reached"
    size = part.stat().st_size if part.exists() else 0
    raise ValueError(
        f"{url}: {problem}, {_ATTEMPTS} times; import again to continue at byte {size:,}, or {_BY_HAND}"
    )


def _append(url: str, part: Path, notice: ProgressCallback | None) -> bool:
    """Request the missing bytes once; return True if `part` is then complete."""
    start, version = part.stat().st_size if part.exists() else 0, _version(part)
    request = urllib.request.Request(url, headers={"User-Agent": "khop", "Accept-Encoding": "identity"})
    if start and version.is_file():
        request.add_header("Range", f"bytes={start}-")
        request.add_header("If-Range", version.read_text())
    try:
        answer = urllib.request.urlopen(request, timeout=_TIMEOUT_S)
    except urllib.error.HTTPError as error:
        if error.code != _REST_UNKNOWN:
            raise
        part.unlink(missing_ok=True)  # it was complete, or the file became shorter: request the whole file
        return False
    with answer:
        start = start if answer.status == _PARTIAL else 0
        if not start:
            part.unlink(missing_ok=True)  # of another version
        length = answer.headers.get("Content-Length")
        total = None if length is None else start + int(length)
        check_disk(part, (total or start) - start, "the download")
        strong = answer.headers.get("ETag") or answer.headers.get("Last-Modified") or "W/"
        version.write_text(strong)
        if strong.startswith("W/"):
            version.unlink()
        meter = Meter(max(start, total or 0), notice, start)
        with part.open("ab") as file:
            while block := answer.read(_BLOCK):
                file.write(block)
                meter.at(f"downloading {url.rpartition('/')[2]}", len(block))
            file.flush()
            os.fsync(file.fileno())
    return total is None or meter.done >= total


def _version(part: Path) -> Path:
    """Return the file that records the server's version of `part`."""
    return part.with_name(f"{part.name}.version")


def unpacked(archive: Path, folder: Path, notice: ProgressCallback | None = None) -> Path:
    """Unpack a .zip or .tar file into the new folder `folder` and return it.

    The folder is written atomically. ValueError for a damaged archive, a member outside the folder, a link or
    a device, and for members with more than 100 times the size of the archive in total (64 MiB are always
    allowed).
    """
    try:
        if zipfile.is_zipfile(archive):
            with zipfile.ZipFile(archive) as opened:
                _unpack(archive, folder, opened.extract, [
                    (entry, entry.filename, entry.file_size, not stat.S_ISLNK(entry.external_attr >> 16))
                    for entry in opened.infolist()
                ], notice)  # fmt: skip
        elif tarfile.is_tarfile(archive):
            # Python before 3.11.4 has no filters; `_unpack` has made their checks.
            settings = {"filter": "data"} if hasattr(tarfile, "data_filter") else {"set_attrs": False}
            with tarfile.open(archive) as tar:
                of_tar = [(one, one.name, one.size, one.isreg() or one.isdir()) for one in tar]
                _unpack(archive, folder, partial(tar.extract, **settings), of_tar, notice)
        else:
            raise ValueError(f"{archive}: neither a .zip nor a .tar archive; remove it and import again")
    except (zipfile.BadZipFile, tarfile.TarError, zlib.error, EOFError):
        raise ValueError(f"{archive}: is damaged or cut off; remove it and import again") from None
    except (NotImplementedError, RuntimeError):
        raise ValueError(
            f"{archive}: is encrypted, or compressed by another method; unpack it yourself and give its "
            "folder by --root"
        ) from None
    return folder


def _unpack(
    archive: Path,
    folder: Path,
    extract: Callable[[Any, Path], object],
    members: Sequence[tuple[Any, str, int, bool]],  # with name, size, and True for a file or a folder
    notice: ProgressCallback | None,
) -> None:
    limit = max(_LEAST_LIMIT, MOST_EXPANSION * archive.stat().st_size)
    total = sum(size for _, _, size, _ in members)
    for _, name, _, is_plain in members:
        path = PurePosixPath(name.replace("\\", "/"))
        is_outside = path.is_absolute() or ".." in path.parts
        if is_outside or not is_plain:
            problem = "is outside the folder" if is_outside else "is a link or device"
            raise ValueError(f"{archive}: member {name!r} {problem}; do not use this archive")
    if total > limit or len(members) > _MOST_MEMBERS:
        raise ValueError(
            f"{archive}: its members take more than {limit / 1e9:,.2f} GB, {MOST_EXPANSION} times the "
            "archive, or are more than a million; if you trust it, unpack it yourself and give its folder "
            "by --root"
        )
    check_disk(folder, total, "the unpacked set")
    meter = Meter(total, notice)
    with new_folder(folder) as made:
        for member, name, size, _ in members:
            extract(member, made)
            meter.at(f"unpacking {name}", size)


def fetched(
    url: str, context: ImportContext, notice: ProgressCallback | None = None, md5: str | None = None
) -> Path:
    """Return the folder in the cache with a file, or with the content of an archive; download it first.

    An archive is removed once it is unpacked; its size and sha256 are recorded next to the folder.
    """
    name = url.rpartition("/")[2]
    digest = hashlib.sha256(url.encode()).hexdigest()[:8]
    home = (context.cache or cache_folder()) / "sets" / f"{Path(name).stem}-{digest}"
    if not name.endswith((".zip", ".tar.gz")):
        download(url, home / name, md5, notice)
        return home
    folder = home / "unpacked"
    if not folder.is_dir():
        download(url, home / name, md5, notice)
        unpacked(home / name, folder, notice)
    (home / name).unlink(missing_ok=True)
    return folder


def known_set(kind: str, name: str, sets: Mapping[str, AnySet], what: str = "set") -> AnySet:
    """Return the value of a set; ValueError for an unknown name."""
    if name not in sets:
        raise ValueError(f"{kind}:{name}: no such {what}; {nearest(name, list(sets))}")
    return sets[name]


def mirrored(url: str, mirror: str | None) -> str:
    """Return the address of a publisher's file, or of the file with the same name in a mirror."""
    return url if mirror is None else f"{mirror.rstrip('/')}/{url.rpartition('/')[2]}"


def root_folder(
    options: PublishedSet,
    context: ImportContext,
    url: str,
    notice: ProgressCallback | None,
    md5: str | None = None,
) -> Path:
    """Return the folder `root` of the options, or the folder of the download from `url` or a mirror."""
    if options.root is not None:
        return context.folder / options.root
    return fetched(mirrored(url, options.mirror), context, notice, md5)


def set_folder(root: Path, names: Sequence[str], contents: Sequence[str], source: str) -> Path:
    """Return `root` or one of its folders `names`: the first that has one of `contents`, as patterns.

    ValueError with the places that were tried, and with `source`, the name or the address of the set.
    """
    for folder in (root, *(root / name for name in names)):
        if any(next(folder.glob(content), None) for content in contents):
            return folder
    tried = ", ".join(str(Path(name, content)) for name in (".", *names) for content in contents)
    raise ValueError(f"{root}: has none of {tried}; give the folder of {source} as published and unpacked")
