"""Package lists to a graph folder in one go."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from khop.datasets.debian import importing
from khop.datasets.debian.importing import import_debian, read_facts
from khop.graph.folder import open_folder

MAIN = "Package: a\nVersion: 1\nDepends: b\nSection: libs\n\nPackage: b\nSection: games\n"
UPDATES = "Package: a\nVersion: 2\nSuggests: c\nSection: libs\n\nPackage: c\nSection: doc\n"


@pytest.fixture
def lists(tmp_path: Path) -> Path:
    folder = tmp_path / "lists"
    folder.mkdir()
    (folder / "x_main_Packages").write_text(MAIN)
    (folder / "x_updates_Packages.gz").write_bytes(gzip.compress(UPDATES.encode()))
    return folder


def test_all_lists_make_one_graph_with_the_newest_of_each_package(lists: Path, tmp_path: Path) -> None:
    facts = import_debian(tmp_path / "graph", "debian", lists)
    folder = open_folder(tmp_path / "graph")
    assert facts.counts["package"] == folder.num_nodes("package") == 3
    assert folder.csc(("package", "linked", "package")).indices.tolist() == [2, 0]


def test_without_a_folder_it_is_apts_own(
    lists: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(importing, "machine_lists", lambda: lists)
    import_debian(tmp_path / "graph", "debian-typed")
    assert "maintainer" in open_folder(tmp_path / "graph").schema.node_types


def test_progress_names_every_list_and_the_writing(lists: Path, tmp_path: Path) -> None:
    heard: list[str] = []

    def notice(what: str, done: int, total: int) -> None:
        assert 0 <= done <= total
        heard.append(what)

    import_debian(tmp_path / "graph", "debian", lists, notice)
    assert heard[0] == "x_main_Packages: 0 packages"
    assert "x_updates_Packages.gz" in heard
    assert heard[-1].endswith("indices.npy")


def test_lists_without_a_package_are_refused(tmp_path: Path) -> None:
    (tmp_path / "x_Packages").write_text("\n")
    with pytest.raises(ValueError, match=r"x_Packages: no package in it; run `apt-get update`"):
        read_facts([tmp_path / "x_Packages"])


def test_a_folder_that_exists_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    (tmp_path / "graph").write_text("mine")
    with pytest.raises(ValueError, match="graph: exists already"):
        import_debian(tmp_path / "graph", "debian", tmp_path / "no lists")
    assert (tmp_path / "graph").read_text() == "mine"
