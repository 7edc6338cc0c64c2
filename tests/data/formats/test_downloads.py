"""Downloads from a real server continue and are checked; archives are unpacked within a folder."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
import zipfile
from pathlib import Path

import pytest

from data.formats.server import FileServer
from khop.data.formats import downloads
from khop.data.formats.downloads import download, fetched, mirrored, set_folder, unpacked
from khop.data.importers import ImportContext

DATA = bytes(range(256)) * 8192  # 2 MiB


@pytest.fixture
def served(tmp_path: Path) -> Path:
    folder = tmp_path / "served"
    folder.mkdir()
    (folder / "set.zip").write_bytes(DATA)
    return folder


def test_a_broken_connection_continues_where_it_ended(served: Path, tmp_path: Path) -> None:
    told: list[tuple[str, int, int]] = []
    with FileServer(served, breaks=(1_000_000, 500_000)) as server:
        download(f"{server.url}/set.zip", tmp_path / "set.zip", notice=lambda *at: told.append(at))
    assert (tmp_path / "set.zip").read_bytes() == DATA
    assert server.asked == [None, "bytes=1000000-", "bytes=1500000-"]
    sha256 = hashlib.sha256(DATA).hexdigest()
    assert told[-1] == ("downloading set.zip", len(DATA), len(DATA))
    assert [at[1] for at in told] == sorted(at[1] for at in told)
    record = json.loads((tmp_path / "set.zip.json").read_text())
    assert record == {"url": f"{server.url}/set.zip", "bytes": len(DATA), "sha256": sha256}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["served", "set.zip", "set.zip.json"]


def test_the_next_import_continues_and_a_changed_file_starts_again(served: Path, tmp_path: Path) -> None:
    with FileServer(served, breaks=(100,) * 5) as server:
        url = f"{server.url}/set.zip"
        with pytest.raises(ValueError, match=r"set.zip: .* 5 times; import again to continue at byte 500"):
            download(url, tmp_path / "set.zip")
        assert not (tmp_path / "set.zip").exists()
        (served / "set.zip").write_bytes(DATA[::-1])
        download(url, tmp_path / "set.zip")
    assert server.asked[5] == "bytes=500-"
    assert (tmp_path / "set.zip").read_bytes() == DATA[::-1]


def test_a_whole_part_of_an_earlier_call_is_not_trusted_but_asked_for(served: Path, tmp_path: Path) -> None:
    with FileServer(served) as server:
        url = f"{server.url}/set.zip"
        (tmp_path / "set.zip.part").write_bytes(DATA)
        (tmp_path / "set.zip.part.version").write_text(f'"{hashlib.md5(DATA).hexdigest()}"')
        download(url, tmp_path / "set.zip")
    assert server.asked == [f"bytes={len(DATA)}-", None]
    assert (tmp_path / "set.zip").read_bytes() == DATA


def test_the_first_bytes_of_a_changed_file_make_space_for_it(
    served: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    part, needed = tmp_path / "set.zip.part", len(DATA) * 11 // 10
    part.write_bytes(DATA[:1000])

    def left(_: object) -> object:
        return type("Usage", (), {"free": 0 if part.exists() else needed})

    monkeypatch.setattr("shutil.disk_usage", left)
    with FileServer(served) as server:
        download(f"{server.url}/set.zip", tmp_path / "set.zip")
    assert (tmp_path / "set.zip").read_bytes() == DATA


def test_the_publishers_checksum_decides(served: Path, tmp_path: Path) -> None:
    with FileServer(served) as server:
        url = f"{server.url}/set.zip"
        with pytest.raises(ValueError, match="its md5 is .*, the publisher's is 0000: the file was changed"):
            download(url, tmp_path / "set.zip", "0000")
        assert [path.name for path in tmp_path.iterdir() if path.name.endswith((".part", ".zip"))] == []
        download(url, tmp_path / "set.zip", hashlib.md5(DATA).hexdigest())
        asked = len(server.asked)
        download(url, tmp_path / "set.zip", hashlib.md5(DATA).hexdigest())
        assert len(server.asked) == asked  # it is there


def test_an_error_of_the_server_names_the_way_out(served: Path, tmp_path: Path) -> None:
    with (
        FileServer(served) as server,
        pytest.raises(ValueError, match="returned 404 .* give its folder by --root"),
    ):
        download(f"{server.url}/other.zip", tmp_path / "other.zip")
    with pytest.raises(ValueError, match="only http and https addresses"):
        download((served / "set.zip").as_uri(), tmp_path / "x.zip")


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
    folder = unpacked(tarred(tmp_path / "set.tgz", plain), tmp_path / "tar")
    assert (folder / "d" / "e").read_bytes() == b"xxx"


@pytest.mark.parametrize("name", ["../out.txt", "a/../../out.txt", "/tmp/out.txt", "..\\out.txt"])
def test_a_member_outside_is_refused(name: str, tmp_path: Path) -> None:
    for archive in (
        zipped(tmp_path / "set.zip", **{name: b"x"}),
        tarred(tmp_path / "t.tar", tarfile.TarInfo(name)),
    ):
        with pytest.raises(ValueError, match="is outside the folder"):
            unpacked(archive, tmp_path / "a" / "out")
    assert not (tmp_path / "a").exists()


def test_links_and_devices_are_refused(tmp_path: Path) -> None:
    for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE):
        member = tarfile.TarInfo("member")
        member.type, member.linkname = kind, "/etc/passwd"
        with pytest.raises(ValueError, match="'member' is a link or device"):
            unpacked(tarred(tmp_path / "t.tar", member), tmp_path / "out")
    entry = zipfile.ZipInfo("link")
    entry.external_attr = 0o120777 << 16
    with zipfile.ZipFile(tmp_path / "z.zip", "w") as archive:
        archive.writestr(entry, "/etc/passwd")
    with pytest.raises(ValueError, match="'link' is a link"):
        unpacked(tmp_path / "z.zip", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_expansion_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(downloads, "_LEAST_LIMIT", 1 << 16)
    archive = zipped(tmp_path / "bomb.zip", zeros=bytes(16 << 20))
    with pytest.raises(ValueError, match="100 times the archive, or"):
        unpacked(archive, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_archives_are_unpacked_by_a_python_without_filters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(tarfile, "data_filter")  # 3.11.0 to 3.11.3
    plain = tarfile.TarInfo("d/e")
    plain.size = 3
    folder = unpacked(tarred(tmp_path / "set.tgz", plain), tmp_path / "tar")
    assert (folder / "d" / "e").read_bytes() == b"xxx"


def test_an_archive_larger_than_the_disk_is_refused_before_it_is_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = zipped(tmp_path / "bomb.zip", zeros=bytes(1 << 20))
    monkeypatch.setattr("shutil.disk_usage", lambda _: type("Usage", (), {"free": 1 << 16}))
    with pytest.raises(ValueError, match="the unpacked set needs 1.05 MB of disk"):
        unpacked(archive, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_size_that_is_not_true_and_a_file_that_is_no_archive_are_found(tmp_path: Path) -> None:
    archive = zipped(tmp_path / "set.zip", a=bytes(100_000))
    data = archive.read_bytes().replace((100_000).to_bytes(4, "little"), (10).to_bytes(4, "little"))
    archive.write_bytes(data)
    with pytest.raises(ValueError, match="damaged"):
        unpacked(archive, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    (tmp_path / "x.zip").write_bytes(b"<html>not found</html>")
    with pytest.raises(ValueError, match="neither a .zip nor a .tar archive"):
        unpacked(tmp_path / "x.zip", tmp_path / "out")


def test_the_cache_keeps_an_unpacked_archive_and_the_checksum_of_it(tmp_path: Path) -> None:
    (tmp_path / "served").mkdir()
    zipped(tmp_path / "served" / "a.zip", **{"a/b.txt": b"hello"})
    context = ImportContext(tmp_path, cache=tmp_path / "cache")
    with FileServer(tmp_path / "served") as server:
        folder = fetched(f"{server.url}/a.zip", context)
        assert fetched(f"{server.url}/a.zip", context) == folder
        assert len(server.asked) == 1
    assert (folder / "a" / "b.txt").read_text() == "hello"
    assert not (folder.parent / "a.zip").exists()
    assert len(json.loads((folder.parent / "a.zip.json").read_text())["sha256"]) == 64


def test_a_plain_file_and_a_server_that_is_gone(tmp_path: Path) -> None:
    (tmp_path / "served").mkdir()
    (tmp_path / "served" / "a.npz").write_bytes(b"x")
    context = ImportContext(tmp_path, cache=tmp_path / "cache")
    with FileServer(tmp_path / "served") as server:
        assert (fetched(f"{server.url}/a.npz", context) / "a.npz").read_bytes() == b"x"
    assert (fetched(f"{server.url}/a.npz", context) / "a.npz").read_bytes() == b"x"
    with pytest.raises(ValueError, match="b.npz: .* download the set yourself and give its folder by --root"):
        fetched(f"{server.url}/b.npz", context)


def test_the_first_folder_with_the_content(tmp_path: Path) -> None:
    (tmp_path / "b" / "raw").mkdir(parents=True)
    assert set_folder(tmp_path, ("a", "b"), ["raw"], "s") == tmp_path / "b"
    assert set_folder(tmp_path / "b", ("a", "b"), ["*.csv", "r*"], "s") == tmp_path / "b"
    with pytest.raises(ValueError, match="has none of raw, a/raw; give the folder of the set as published"):
        set_folder(tmp_path, ("a",), ["raw"], "the set")


def test_mirrors_have_files_of_the_same_names() -> None:
    assert mirrored("http://a/b/c.zip", None) == "http://a/b/c.zip"
    assert mirrored("http://a/b/c.zip", "http://m/sets/") == "http://m/sets/c.zip"
