"""Finding and reading package lists, with real files, compressors and apt where it is."""

from __future__ import annotations

import gzip
import lzma
import stat
import sys
from pathlib import Path

import debian_graph as lists
import pytest
from debian_graph import find_lists, list_lines, machine_lists

TEXT = "Package: a\nDescription: naïve\n\nPackage: b\n"
LINES = TEXT.splitlines(keepends=True)


def script(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty folder where commands are looked for: a machine without apt until a test puts one there."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    return folder


def test_lists_are_found_by_name_whatever_else_lies_there(tmp_path: Path) -> None:
    wanted = [
        "Packages",
        "Packages.xz",
        "x_main_binary-amd64_Packages",
        "x_universe_Packages.lz4",
        "y_Packages.gz",
    ]
    for name in [*wanted, "lock", "x_InRelease", "x_Sources.lz4", "x_Packages.diff", "my-Packages"]:
        (tmp_path / name).touch()
    (tmp_path / "dir_Packages").mkdir()
    assert [path.name for path in find_lists(tmp_path)] == wanted


def test_an_empty_folder_and_a_missing_one_are_distinguished(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"holds no package lists .* run `apt-get update`, or name a folder"):
        find_lists(tmp_path)
    with pytest.raises(ValueError, match="absent: no such folder; name a folder"):
        find_lists(tmp_path / "absent")


def test_apt_says_where_its_lists_are(commands: Path) -> None:
    script(commands / "apt-config", """echo "LISTS='/srv/apt lists/'" """)
    assert machine_lists() == Path("/srv/apt lists")


def test_without_apt_the_error_names_the_remedy(commands: Path) -> None:
    with pytest.raises(ValueError, match=r"there is no apt on this machine \(no apt-config\); name a folder"):
        machine_lists()


def test_an_apt_that_fails_or_answers_nothing_is_quoted(commands: Path) -> None:
    script(commands / "apt-config", "echo broken configuration >&2; exit 100")
    with pytest.raises(
        ValueError, match=r"`apt-config shell .*` failed: broken configuration; name a folder"
    ):
        machine_lists()
    script(commands / "apt-config", "exit 0")
    with pytest.raises(ValueError, match=r"`apt-config shell .*` says '', which names no folder"):
        machine_lists()


@pytest.mark.parametrize(("name", "compress"), [("Packages", bytes), ("x_Packages.gz", gzip.compress)])
def test_plain_and_gzip_lists_are_read_without_apt(
    name: str, compress: type[bytes], commands: Path, tmp_path: Path
) -> None:
    path = tmp_path / name
    path.write_bytes(compress(TEXT.encode()))
    assert list(list_lines(path)) == LINES


@pytest.mark.parametrize("keep", [40, 15])
def test_a_truncated_gzip_list_is_an_error(keep: int, tmp_path: Path) -> None:
    path = tmp_path / "x_Packages.gz"
    path.write_bytes(gzip.compress(TEXT.encode())[:keep])
    with pytest.raises(ValueError, match=r"x_Packages\.gz: damaged .* copy it again"):
        list(list_lines(path))


def test_what_is_no_gzip_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "x_Packages.gz"
    path.write_bytes(TEXT.encode())
    with pytest.raises(ValueError, match="damaged"):
        list(list_lines(path))


def test_other_compressions_are_read_by_apt(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    helper = script(
        tmp_path / "apt-helper", f'[ "$1" = cat-file ] && exec {sys.executable} -c "{_UNXZ}" "$2"'
    )
    monkeypatch.setattr(lists, "_APT_HELPER", str(helper))
    path = tmp_path / "x_Packages.xz"
    path.write_bytes(lzma.compress(TEXT.encode()))
    assert list(list_lines(path)) == LINES


def test_reading_may_stop_early_and_leaves_no_helper(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    helper = script(tmp_path / "apt-helper", "while echo Package: a; do :; done 2>/dev/null")
    monkeypatch.setattr(lists, "_APT_HELPER", str(helper))
    lines = list_lines(tmp_path / "x_Packages.lz4")
    assert next(lines) == "Package: a\n"
    lines.close()


def test_what_apt_cannot_read_is_an_error_with_apts_reason(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    helper = script(tmp_path / "apt-helper", "echo Package: a; echo E: corrupt >&2; exit 100")
    monkeypatch.setattr(lists, "_APT_HELPER", str(helper))
    path = tmp_path / "x_Packages.lz4"
    with pytest.raises(ValueError, match=r"x_Packages\.lz4: apt cannot read it \(E: corrupt\)"):
        list(list_lines(path))


def test_without_apt_other_compressions_are_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(lists, "_APT_HELPER", str(tmp_path / "absent"))
    with pytest.raises(
        ValueError, match=r"x_Packages\.lz4: only apt reads \.lz4 and there is no .*; decompress it"
    ):
        list(list_lines(tmp_path / "x_Packages.lz4"))


def test_bytes_that_are_no_text_do_not_stop_the_reading(tmp_path: Path) -> None:
    path = tmp_path / "Packages"
    path.write_bytes(b"Package: a\nDescription: \xff\n")
    assert next(list_lines(path)) == "Package: a\n"
    assert len(list(list_lines(path))) == 2


_UNXZ = "import lzma, sys; sys.stdout.buffer.write(lzma.open(sys.argv[1]).read())"
