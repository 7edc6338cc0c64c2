"""Downloads from a real server: they continue, are checked, and end in one sentence."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from data.formats.server import FileServer
from khop.data.formats.downloads import Checksum, download

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
        sha256 = download(f"{server.url}/set.zip", tmp_path / "set.zip", notice=lambda *at: told.append(at))
    assert (tmp_path / "set.zip").read_bytes() == DATA
    assert server.asked == [None, "bytes=1000000-", "bytes=1500000-"]
    assert sha256 == hashlib.sha256(DATA).hexdigest()
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


def test_the_publishers_checksum_decides(served: Path, tmp_path: Path) -> None:
    with FileServer(served) as server:
        url = f"{server.url}/set.zip"
        with pytest.raises(ValueError, match="its md5 is .*, the publisher's is 0000: the file was changed"):
            download(url, tmp_path / "set.zip", Checksum("md5", "0000"))
        assert [path.name for path in tmp_path.iterdir() if path.name.endswith((".part", ".zip"))] == []
        download(url, tmp_path / "set.zip", Checksum("md5", hashlib.md5(DATA).hexdigest()))
        asked = len(server.asked)
        download(url, tmp_path / "set.zip", Checksum("md5", hashlib.md5(DATA).hexdigest()))
        assert len(server.asked) == asked  # it is there


def test_an_error_of_the_server_names_the_way_out(served: Path, tmp_path: Path) -> None:
    with (
        FileServer(served) as server,
        pytest.raises(ValueError, match="answers 404 .* give its folder by --root"),
    ):
        download(f"{server.url}/other.zip", tmp_path / "other.zip")
    with pytest.raises(ValueError, match="only http and https addresses"):
        download((served / "set.zip").as_uri(), tmp_path / "x.zip")
