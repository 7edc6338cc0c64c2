"""Archives from elsewhere: nothing lands outside, and nothing fills the disk."""

from __future__ import annotations

import io
import tarfile
import zipfile
from pathlib import Path

import pytest

from khop.data.formats import downloads as module
from khop.data.formats.downloads import unpacked


def zipped(path: Path, **members: bytes) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return path


def tarred(path: Path, *members: tarfile.TarInfo) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for member in members:
            archive.addfile(member, io.BytesIO(b"x" * member.size))
    return path


def test_members_keep_their_folders(tmp_path: Path) -> None:
    told: list[tuple[str, int, int]] = []
    archive = zipped(tmp_path / "set.zip", **{"a/b.txt": b"hello", "c.txt": b"!", "empty/": b""})
    folder = unpacked(archive, tmp_path / "out", lambda *at: told.append(at))
    assert (folder / "a" / "b.txt").read_bytes() == b"hello"
    assert (folder / "c.txt").read_bytes() == b"!"
    assert told[-1][1:] == (6, 6)
    plain = tarfile.TarInfo("d/e")
    plain.size = 3
    assert (
        unpacked(tarred(tmp_path / "set.tgz", plain), tmp_path / "tar") / "d" / "e"
    ).read_bytes() == b"xxx"


@pytest.mark.parametrize("name", ["../out.txt", "a/../../out.txt", "/tmp/out.txt", "..\\out.txt"])
def test_a_member_outside_is_refused(name: str, tmp_path: Path) -> None:
    for archive in (
        zipped(tmp_path / "set.zip", **{name: b"x"}),
        tarred(tmp_path / "t.tar", tarfile.TarInfo(name)),
    ):
        with pytest.raises(ValueError, match="lies outside the folder"):
            unpacked(archive, tmp_path / "a" / "out")
    assert not (tmp_path / "a").exists()


def test_links_and_devices_are_refused(tmp_path: Path) -> None:
    link = tarfile.TarInfo("link")
    link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
    with pytest.raises(ValueError, match="'link' is a link or device"):
        unpacked(tarred(tmp_path / "t.tar", link), tmp_path / "out")
    entry = zipfile.ZipInfo("link")
    entry.external_attr = 0o120777 << 16
    with zipfile.ZipFile(tmp_path / "z.zip", "w") as archive:
        archive.writestr(entry, "/etc/passwd")
    with pytest.raises(ValueError, match="'link' is a link"):
        unpacked(tmp_path / "z.zip", tmp_path / "out")


def test_expansion_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LEAST_LIMIT", 1 << 16)
    archive = zipped(tmp_path / "bomb.zip", zeros=bytes(16 << 20))
    with pytest.raises(ValueError, match="100 times the archive"):
        unpacked(archive, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_size_that_is_not_true_is_found(tmp_path: Path) -> None:
    archive = zipped(tmp_path / "set.zip", a=bytes(100_000))
    data = archive.read_bytes().replace((100_000).to_bytes(4, "little"), (10).to_bytes(4, "little"))
    archive.write_bytes(data)
    with pytest.raises(ValueError, match="damaged|larger than it says"):
        unpacked(archive, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_file_that_is_no_archive_is_named(tmp_path: Path) -> None:
    (tmp_path / "x.zip").write_bytes(b"<html>not found</html>")
    with pytest.raises(ValueError, match="neither a .zip nor a .tar archive"):
        unpacked(tmp_path / "x.zip", tmp_path / "out")
