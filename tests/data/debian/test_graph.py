"""The two graphs made of a few packages.

Package lists to a graph folder in one go.

The file that khop ships, and what must never be in it.
"""

from __future__ import annotations

import gzip
import io
import re
import sys
import zipfile
from importlib.resources import files
from itertools import chain
from pathlib import Path

import debian_graph
import numpy as np
import pytest
import torch
from debian_graph import Package, collect, main, parse_packages, read_facts, write_snapshot
from hypothesis import given
from hypothesis import strategies as st

from khop.data.builtin import SNAPSHOT
from khop.data.debian.graph import (
    EDGE_TYPES,
    GRAPHS,
    LINKED,
    NODE_TYPES,
    SECTIONS,
    Facts,
    plain_tables,
    read_snapshot,
    word_buckets,
    write_debian,
)
from khop.graph.folder import GraphFolder, open_folder


def package(name: str, section: str = "libs", **relations: tuple[str, ...]) -> Package:
    kept = {"built_from": (name,), "tagged_with": ("use::driver",), **relations}
    return Package(name, "1", section, f"the {name} tool", kept)


# a 0, b 1, c 2, d 3; virtual 0
FACTS = collect(
    [
        package("a", depends=("b", "mail-agent"), suggests=("b",), conflicts=("d",)),
        package("b", recommends=("a",), pre_depends=("c",)),
        package("c", enhances=("c",), provides=("mail-agent",)),
        package("d", section="interstellar", replaces=("c",)),
    ]
)


def edges(folder: GraphFolder, edge_type: tuple[str, str, str]) -> list[tuple[int, int]]:
    csc = folder.csc(edge_type)
    destinations = torch.repeat_interleave(csc.indptr.diff())
    return sorted(zip(csc.indices.tolist(), destinations.tolist(), strict=True))


def test_packages_are_linked_both_ways_once_by_any_of_the_five_uniting_relations(tmp_path: Path) -> None:
    folder = open_folder(write_debian(tmp_path / "graph", "debian", FACTS))
    assert folder.schema.edge_types == (LINKED,)
    assert edges(folder, LINKED) == [(0, 1), (1, 0), (1, 2), (2, 1), (2, 2)]


def test_the_typed_graph_keeps_relations_and_directions_apart(tmp_path: Path) -> None:
    folder = open_folder(write_debian(tmp_path / "graph", "debian-typed", FACTS))
    assert edges(folder, ("package", "depends", "package")) == [(0, 1)]
    assert edges(folder, ("package", "rev_depends", "package")) == [(1, 0)]
    assert edges(folder, ("package", "depends", "virtual")) == [(0, 0)]
    assert edges(folder, ("virtual", "rev_provides", "package")) == [(0, 2)]
    assert edges(folder, ("package", "conflicts", "package")) == [(0, 3)]
    assert edges(folder, ("package", "tagged_with", "tag")) == [(0, 0), (1, 0), (2, 0), (3, 0)]
    forward, backward = ("package", "replaces", "package"), ("package", "rev_replaces", "package")
    assert (folder.schema.reverse_of[forward], folder.schema.reverse_of[backward]) == (backward, forward)


def test_columns_are_counted_words_and_the_section(tmp_path: Path) -> None:
    folder = open_folder(write_debian(tmp_path / "graph", "debian-typed", FACTS))
    columns = folder.columns()
    expected = torch.zeros(512, dtype=torch.uint8)
    for bucket in word_buckets("the tool", "a"):
        expected[bucket] += 1
    assert torch.equal(columns["package"]["x"][0], expected)
    assert columns["package"]["section"].tolist() == [SECTIONS.index("libs")] * 3 + [-1]
    assert folder.schema.column("package", "section").num_classes == len(SECTIONS)
    assert columns["tag"]["x"].sum().item() == 2


@given(st.lists(st.sampled_from(["libs", "games", "interstellar"]), max_size=40))
def test_the_splits_share_out_the_packages_whose_section_is_known(sections: list[str]) -> None:
    packages = [package(f"p{number:02}", section) for number, section in enumerate(sections)]
    labeled = [number for number, section in enumerate(sections) if section in SECTIONS]
    for tables in GRAPHS.values():
        splits = splits_of(tables(collect(packages))[0]["package"].splits)
        assert sorted(chain.from_iterable(splits.values())) == labeled
        assert all(ids == sorted(ids) and ids for ids in splits.values())
        assert abs(len(splits.get("train", [])) - 0.6 * len(labeled)) <= 1
        assert abs(len(splits.get("val", [])) - 0.2 * len(labeled)) <= 1


def test_the_split_depends_on_the_number_of_packages_alone() -> None:
    few = [package(name) for name in "abcdefghij"]
    others = [package(name, section="games") for name in "klmnopqrst"]
    assert splits_of_facts(collect(few)) == splits_of_facts(collect(others))


def splits_of_facts(facts: Facts) -> dict[str, list[int]]:
    return splits_of(plain_tables(facts)[0]["package"].splits)


def splits_of(splits: object) -> dict[str, list[int]]:
    assert isinstance(splits, dict)
    return {name: ids.tolist() for name, ids in splits.items()}


MAIN = "Package: a\nVersion: 1\nDepends: b\nSection: libs\n\nPackage: b\nSection: games\n"
UPDATES = "Package: a\nVersion: 2\nSuggests: c\nSection: libs\n\nPackage: c\nSection: doc\n"


@pytest.fixture
def lists(tmp_path: Path) -> Path:
    folder = tmp_path / "lists"
    folder.mkdir()
    (folder / "x_main_Packages").write_text(MAIN)
    (folder / "x_updates_Packages.gz").write_bytes(gzip.compress(UPDATES.encode()))
    return folder


@pytest.mark.parametrize("given", ["folder", "files", "apt"])
def test_all_lists_make_one_graph_with_the_newest_of_each_package(
    lists: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str
) -> None:
    monkeypatch.setattr(debian_graph, "machine_lists", lambda: lists)
    words = {"folder": [str(lists)], "files": [str(one) for one in sorted(lists.iterdir())], "apt": []}[given]
    monkeypatch.setattr(sys, "argv", ["debian_graph.py", str(tmp_path / "graph"), *words])
    main()
    folder = open_folder(tmp_path / "graph")
    assert folder.num_nodes("package") == 3
    assert folder.csc(("package", "linked", "package")).indices.tolist() == [2, 0]


def test_a_typed_graph_and_a_snapshot_are_written(
    lists: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for words in (["--typed", str(tmp_path / "graph")], [str(tmp_path / "one.npz")]):
        monkeypatch.setattr(sys, "argv", ["debian_graph.py", *words, str(lists)])
        main()
    assert "maintainer" in open_folder(tmp_path / "graph").schema.node_types
    assert read_snapshot((tmp_path / "one.npz").read_bytes()).counts["package"] == 3
    assert re.search(r"sha256 [0-9a-f]{64}, .*\npackage +3\n", capsys.readouterr().out)


def test_progress_names_every_list(lists: Path) -> None:
    heard: list[str] = []

    def notice(what: str, done: int, total: int) -> None:
        assert 0 <= done <= total
        heard.append(what)

    read_facts(sorted(lists.iterdir()), notice)
    assert heard[0] == "x_main_Packages: 0 packages"
    assert heard[-1] == "x_updates_Packages.gz"


def test_lists_without_a_package_are_refused(tmp_path: Path) -> None:
    (tmp_path / "x_Packages").write_text("\n")
    with pytest.raises(ValueError, match=r"x_Packages: no package in it; run `apt-get update`"):
        read_facts([tmp_path / "x_Packages"])


# The counts of docs/debian.md: Debian 12.15, main, amd64.
RELATED = {  # relation: to packages, to virtual packages
    "pre_depends": (965, 29),
    "depends": (246_748, 33_558),
    "recommends": (28_802, 779),
    "suggests": (22_849, 878),
    "enhances": (1_737, 45),
    "breaks": (5_758, 556),
    "replaces": (3_651, 1_135),
    "conflicts": (1_552, 858),
    "provides": (493, 37_051),
}
OTHER = {"built_from": 63_436, "maintained_by": 63_436, "tagged_with": 112_118}


@pytest.fixture(scope="module")
def shipped() -> bytes:
    return (files("khop.data.debian") / SNAPSHOT).read_bytes()


def test_the_shipped_snapshot_has_the_documented_counts(shipped: bytes) -> None:
    facts = read_snapshot(shipped)
    for relation, (to_packages, to_virtual) in RELATED.items():
        assert len(facts.edges["package", relation, "package"]) == to_packages
        assert len(facts.edges["package", relation, "virtual"]) == to_virtual
    others = {relation: len(pairs) for (_, relation, _), pairs in facts.edges.items() if relation in OTHER}
    assert others == OTHER


def test_every_edge_of_the_shipped_snapshot_joins_nodes_that_exist_and_none_is_there_twice(
    shipped: bytes,
) -> None:
    facts = read_snapshot(shipped)
    assert tuple(facts.edges) == EDGE_TYPES
    for (source, _, destination), pairs in facts.edges.items():
        assert 0 <= pairs.left.min() <= pairs.left.max() < facts.counts[source]
        assert 0 <= pairs.right.min() <= pairs.right.max() < facts.counts[destination]
        flat = pairs.left.astype(np.int64) * facts.counts[destination] + pairs.right
        assert (np.diff(flat) > 0).all()


def test_the_shipped_snapshot_holds_integers_and_debtags_and_nothing_that_could_name_a_person(
    shipped: bytes,
) -> None:
    texts = []
    with np.load(io.BytesIO(shipped), allow_pickle=False) as arrays:
        for name, array in arrays.items():
            assert array.dtype.kind in "iuU", name
            if array.dtype.kind == "U":
                texts.append((name, array))
    ((name, tags),) = texts
    assert name == "tags"
    assert all("::" in tag and "@" not in tag and " " not in tag for tag in tags.tolist())
    with zipfile.ZipFile(io.BytesIO(shipped)) as archive:
        assert archive.comment == b""
        assert all(not entry.comment and not entry.extra for entry in archive.infolist())


def test_what_is_written_is_read(tmp_path: Path) -> None:
    facts = collect(parse_packages(["Package: a", "Depends: b", "Tag: x::y", "", "Package: b"], "Packages"))
    write_snapshot(tmp_path / "one.npz", facts)
    again = read_snapshot((tmp_path / "one.npz").read_bytes())
    assert (again.counts, again.tags) == (facts.counts, facts.tags)
    assert again.sections.tolist() == facts.sections.tolist()
    assert pairs_of(again) == pairs_of(facts)


@pytest.mark.long
def test_equal_settings_make_equal_bytes(tmp_path: Path, shipped: bytes) -> None:
    facts = read_snapshot(shipped)
    for name in ("one.npz", "two.npz"):
        write_snapshot(tmp_path / name, facts)
    assert (tmp_path / "one.npz").read_bytes() == (tmp_path / "two.npz").read_bytes()
    assert tuple(facts.counts) == NODE_TYPES


def pairs_of(facts: Facts) -> list[tuple[list[int], list[int]]]:
    return [(pairs.left.tolist(), pairs.right.tolist()) for pairs in (facts.words, *facts.edges.values())]
