"""The cache keeps what was fetched, by its address."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import pytest

from data.formats.server import FileServer
from khop.data.formats.downloads import fetched, fetched_file
from khop.data.importers import ImportContext


def test_an_archive_is_unpacked_and_removed_and_its_checksum_stays(tmp_path: Path) -> None:
    (tmp_path / "served").mkdir()
    with zipfile.ZipFile(tmp_path / "served" / "a.zip", "w") as archive:
        archive.writestr("a/b.txt", "hello")
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
        assert fetched_file(f"{server.url}/a.npz", context).read_bytes() == b"x"
    assert fetched_file(f"{server.url}/a.npz", context).read_bytes() == b"x"
    with pytest.raises(ValueError, match="b.npz: .* download the set yourself and give its folder by --root"):
        fetched_file(f"{server.url}/b.npz", context)
