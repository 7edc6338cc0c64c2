"""Archives unpacked into a folder: no member lands outside, and expansion is limited."""

from __future__ import annotations

import stat
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO

from khop.graph.atomic import new_folder
from khop.graph.disk_space import check_disk
from khop.graph.progress import Meter, ProgressCallback, in_bytes

_BLOCK = 1 << 20
MOST_EXPANSION = 100  # bytes of the members, over bytes of the archive
_LEAST_LIMIT = 64 << 20
_MOST_MEMBERS = 1_000_000


@dataclass(frozen=True)
class _Member:
    name: str
    size: int  # as the archive says
    kind: str  # "file", "folder", or another kind in words
    open: Callable[[], IO[bytes]]


def unpacked(archive: Path, folder: Path, notice: ProgressCallback | None = None) -> Path:
    """Unpack a .zip or .tar file into the new folder `folder` and return it.

    The folder appears complete or not at all. ValueError for a member outside the folder, for links and
    devices, and for members that are in all more than 100 times as large as the archive (64 MiB are always
    allowed).
    """
    limit = max(_LEAST_LIMIT, MOST_EXPANSION * archive.stat().st_size)
    try:
        with _opened(archive) as members:
            found = list(_checked(archive, members, limit))
            check_disk(folder, sum(member.size for member, _ in found), "the unpacked set")
            meter = Meter(sum(member.size for member, _ in found), notice)
            with new_folder(folder) as made:
                for member, path in found:
                    meter.at(f"unpacking {path.name}", 0)
                    _extract(archive, member, made / path, meter)
    except (zipfile.BadZipFile, tarfile.TarError, EOFError, NotImplementedError) as error:
        raise ValueError(f"{archive}: damaged ({error}); remove it and import again") from None
    return folder


def _checked(
    archive: Path, members: Iterator[_Member], limit: int
) -> Iterator[tuple[_Member, PurePosixPath]]:
    total = 0
    for number, member in enumerate(members):
        path = PurePosixPath(member.name.replace("\\", "/"))
        if path.is_absolute() or ".." in path.parts:
            raise ValueError(
                f"{archive}: member {member.name!r} lies outside the folder; do not use this archive"
            )
        if member.kind not in ("file", "folder"):
            raise ValueError(f"{archive}: member {member.name!r} is a {member.kind}; do not use this archive")
        total += member.size
        if total > limit or number >= _MOST_MEMBERS:
            raise ValueError(
                f"{archive}: its members take more than {in_bytes(limit)}, {MOST_EXPANSION} times the "
                "archive; if you trust it, unpack it yourself and give its folder by --root"
            )
        if member.kind == "file":
            yield member, path


def _extract(archive: Path, member: _Member, path: Path, meter: Meter) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    left = member.size
    with member.open() as source, path.open("xb") as target:
        while block := source.read(_BLOCK):
            left -= len(block)
            if left < 0:
                raise ValueError(f"{archive}: member {member.name!r} is larger than it says; do not use it")
            target.write(block)
            meter.at(f"unpacking {path.name}", len(block))


@contextmanager
def _opened(archive: Path) -> Iterator[Iterator[_Member]]:
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as opened:
            yield (_of_zip(opened, entry) for entry in opened.infolist())
    elif tarfile.is_tarfile(archive):
        with tarfile.open(archive) as tar:
            yield (_of_tar(tar, entry) for entry in tar)
    else:
        raise ValueError(f"{archive}: neither a .zip nor a .tar archive; remove it and import again")


def _of_zip(opened: zipfile.ZipFile, entry: zipfile.ZipInfo) -> _Member:
    kind = "folder" if entry.is_dir() else "file"
    if stat.S_ISLNK(entry.external_attr >> 16):
        kind = "link"
    return _Member(entry.filename, entry.file_size, kind, lambda: opened.open(entry))


def _of_tar(tar: tarfile.TarFile, entry: tarfile.TarInfo) -> _Member:
    kind = "file" if entry.isreg() else "folder" if entry.isdir() else "link or device"

    def opened() -> IO[bytes]:
        file = tar.extractfile(entry)
        assert file is not None
        return file

    return _Member(entry.name, entry.size, kind, opened)
