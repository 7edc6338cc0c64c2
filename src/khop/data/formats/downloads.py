"""Files of published sets: downloads that continue, archives, and the folder of a set."""

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
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from pathlib import Path, PurePosixPath
from typing import IO, Any

from khop.data.importers import ImportContext
from khop.graph.atomic import Meter, ProgressCallback, check_disk, new_folder
from khop.user_cache import cache_folder

_BLOCK = 1 << 20
_ATTEMPTS = 5
_TIMEOUT_S = 60.0
_PARTIAL, _REST_UNKNOWN = 206, 416


@dataclass(frozen=True)
class Checksum:
    """A checksum as its publisher gives it."""

    algorithm: str  # "md5", "sha256"
    digest: str


def download(
    url: str, target: Path, checksum: Checksum | None = None, notice: ProgressCallback | None = None
) -> str:
    """Download `url` to `target` and return its sha256. A file that is there already is kept.

    An interrupted download continues at the next call, if the server still has the same file, else starts
    again. The connection is tried five times. `target` appears complete; TARGET.json beside it records url,
    size and sha256. ValueError for an error of the server and for another checksum.
    """
    record = target.with_name(f"{target.name}.json")
    if target.is_file() and record.is_file():
        found: str = json.loads(record.read_text())["sha256"]
        return found
    if not url.startswith(("http://", "https://")):
        raise ValueError(f"{url}: only http and https addresses are downloaded")
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f"{target.name}.part")
    _whole(url, part, notice)
    sha256 = _checked(url, part, checksum)
    record.write_text(json.dumps({"url": url, "bytes": part.stat().st_size, "sha256": sha256}, indent=1))
    _version(part).unlink(missing_ok=True)
    part.replace(target)
    return sha256


def _whole(url: str, part: Path, notice: ProgressCallback | None) -> None:
    """Append to `part` until it is whole."""
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            if _more(url, part, notice):
                return
            problem = "the connection ended too early"
        except urllib.error.HTTPError as error:
            raise ValueError(
                f"{url}: the server answers {error.code} {error.reason}; download the set yourself "
                "and give its folder by --root"
            ) from None
        except (urllib.error.URLError, http.client.HTTPException, OSError) as error:
            if isinstance(error, OSError) and part.exists() and error.filename is not None:
                raise
            is_late = "timed out" in str(error)
            problem = f"no answer within {_TIMEOUT_S} s" if is_late else "the server cannot be reached"
            if isinstance(error, http.client.HTTPException | ConnectionResetError):
                problem = "the connection ended too early"
        if attempt == _ATTEMPTS:
            raise ValueError(
                f"{url}: {problem}, {_ATTEMPTS} times; import again to continue at byte {_size(part):,}, or "
                "download the set yourself and give its folder by --root"
            )


def _more(url: str, part: Path, notice: ProgressCallback | None) -> bool:
    """Make one request for what is missing; return True if `part` is whole then."""
    start, version = _size(part), _version(part)
    request = urllib.request.Request(url, headers={"User-Agent": "khop", "Accept-Encoding": "identity"})
    if start and version.is_file():
        request.add_header("Range", f"bytes={start}-")
        request.add_header("If-Range", version.read_text())
    try:
        answer = urllib.request.urlopen(request, timeout=_TIMEOUT_S)
    except urllib.error.HTTPError as error:
        if error.code != _REST_UNKNOWN:
            raise
        # `part` was whole, or the file became shorter: only the whole file can decide.
        part.unlink(missing_ok=True)
        return False
    with answer:
        if answer.status != _PARTIAL:
            start = 0
        length = answer.headers.get("Content-Length")
        total = None if length is None else start + int(length)
        check_disk(part, (total or start) - start, "the download")
        strong = answer.headers.get("ETag") or answer.headers.get("Last-Modified") or ""
        if strong and not strong.startswith("W/"):
            version.write_text(strong)
        else:
            version.unlink(missing_ok=True)
        with part.open("r+b" if start else "wb") as file:
            file.seek(start)
            done = _copy(answer, file, Meter(max(start, total or 0), notice, start), url)
    return total is None or done >= total


def _copy(answer: IO[bytes], file: IO[bytes], meter: Meter, url: str) -> int:
    what = f"downloading {url.rpartition('/')[2]}"
    while block := answer.read(_BLOCK):
        file.write(block)
        meter.at(what, len(block))
    file.flush()
    os.fsync(file.fileno())
    return meter.done


def _checked(url: str, part: Path, checksum: Checksum | None) -> str:
    digests = {name: hashlib.new(name) for name in {"sha256", checksum.algorithm if checksum else "sha256"}}
    with part.open("rb") as file:
        while block := file.read(_BLOCK):
            for digest in digests.values():
                digest.update(block)
    if checksum is not None and digests[checksum.algorithm].hexdigest() != checksum.digest:
        part.unlink()
        found = digests[checksum.algorithm].hexdigest()
        raise ValueError(
            f"{url}: its {checksum.algorithm} is {found}, the publisher's is "
            f"{checksum.digest}: the file was changed or damaged on its way; try again later, or download it "
            "yourself and give its folder by --root"
        )
    return digests["sha256"].hexdigest()


def _version(part: Path) -> Path:
    """Return the file with the server's name of the version that `part` is of."""
    return part.with_name(f"{part.name}.version")


def _size(part: Path) -> int:
    return part.stat().st_size if part.exists() else 0


MOST_EXPANSION = 100  # bytes of the members, over bytes of the archive
_LEAST_LIMIT = 64 << 20
_MOST_MEMBERS = 1_000_000


def unpacked(archive: Path, folder: Path, notice: ProgressCallback | None = None) -> Path:
    """Unpack a .zip or .tar file into the new folder `folder` and return it.

    The folder appears complete or not at all. ValueError for a member outside the folder, for links and
    devices, and for members that are in all more than 100 times as large as the archive (64 MiB are always
    allowed).
    """
    try:
        if zipfile.is_zipfile(archive):
            with zipfile.ZipFile(archive) as opened:
                _unpack(archive, folder, [_of_zip(opened, entry) for entry in opened.infolist()], notice)
        elif tarfile.is_tarfile(archive):
            with tarfile.open(archive) as tar:
                _unpack(archive, folder, [_of_tar(tar, entry) for entry in tar], notice)
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


@dataclass(frozen=True)
class _Member:
    name: str
    size: int
    kind: str  # "file", "folder", or another kind in words
    open: Callable[[], Any]


def _of_zip(opened: zipfile.ZipFile, entry: zipfile.ZipInfo) -> _Member:
    is_link = stat.S_ISLNK(entry.external_attr >> 16)
    kind = "link" if is_link else "folder" if entry.is_dir() else "file"
    return _Member(entry.filename, entry.file_size, kind, partial(opened.open, entry))


def _of_tar(tar: tarfile.TarFile, entry: tarfile.TarInfo) -> _Member:
    kind = "file" if entry.isreg() else "folder" if entry.isdir() else "link or device"
    return _Member(entry.name, entry.size, kind, partial(tar.extractfile, entry))


def _unpack(archive: Path, folder: Path, members: list[_Member], notice: ProgressCallback | None) -> None:
    total, limit = sum(member.size for member in members), MOST_EXPANSION * archive.stat().st_size
    for member in members:
        path = PurePosixPath(member.name.replace("\\", "/"))
        if path.is_absolute() or ".." in path.parts:
            raise ValueError(
                f"{archive}: member {member.name!r} lies outside the folder; do not use this archive"
            )
        if member.kind not in ("file", "folder"):
            raise ValueError(f"{archive}: member {member.name!r} is a {member.kind}; do not use this archive")
    if total > max(_LEAST_LIMIT, limit) or len(members) > _MOST_MEMBERS:
        raise ValueError(
            f"{archive}: its members take more than {max(_LEAST_LIMIT, limit) / 1e9:,.2f} GB, "
            f"{MOST_EXPANSION} times the archive; if you trust it, unpack it yourself and give its folder by "
            "--root"
        )
    check_disk(folder, total, "the unpacked set")
    meter = Meter(total, notice)
    with new_folder(folder) as made:
        for member in members:
            place = made / member.name.replace("\\", "/")
            if member.kind == "file":
                place.parent.mkdir(parents=True, exist_ok=True)
                with member.open() as source, place.open("xb") as target:
                    while block := source.read(_BLOCK):
                        target.write(block)
                        meter.at(f"unpacking {place.name}", len(block))


def fetched(
    url: str,
    context: ImportContext,
    notice: ProgressCallback | None = None,
    checksum: Checksum | None = None,
) -> Path:
    """Return the folder of an unpacked archive in the cache; the first use downloads it.

    The archive is removed once it is unpacked; its size and sha256 stay recorded beside the folder.
    """
    folder, archive = _places(url, context)
    if not folder.is_dir():
        download(url, archive, checksum, notice)
        unpacked(archive, folder, notice)
    archive.unlink(missing_ok=True)
    return folder


def fetched_file(
    url: str,
    context: ImportContext,
    notice: ProgressCallback | None = None,
    checksum: Checksum | None = None,
) -> Path:
    """Return a downloaded file in the cache that is no archive."""
    _, file = _places(url, context)
    download(url, file, checksum, notice)
    return file


def _places(url: str, context: ImportContext) -> tuple[Path, Path]:
    """Return the folder of a set, and the place of its archive. They differ for each address."""
    name = url.rpartition("/")[2]
    home = (
        (context.cache or cache_folder())
        / "sets"
        / f"{Path(name).stem}-{sha256(url.encode()).hexdigest()[:8]}"
    )
    return home / "unpacked", home / name


def mirrored(url: str, mirror: str | None) -> str:
    """Return the address of a publisher's file, or of the file of the same name in a mirror."""
    return url if mirror is None else f"{mirror.rstrip('/')}/{url.rpartition('/')[2]}"


def set_folder(root: Path, names: Sequence[str], content: str, source: str) -> Path:
    """Return `root` or one of its folders `names`: the first that has `content`, a file or folder.

    ValueError with the places that were tried, and with `source`, the address of the set.
    """
    for folder in (root, *(root / name for name in names)):
        if (folder / content).exists():
            return folder
    tried = ", ".join(str(Path(name, content)) for name in (".", *names))
    raise ValueError(
        f"{root}: has none of {tried}; give the folder of the set as published, unpacked from {source}"
    )
