"""The two graphs made of a few packages."""

from __future__ import annotations

from itertools import chain
from pathlib import Path

import torch
from hypothesis import given
from hypothesis import strategies as st

from khop.datasets.debian.facts import SECTIONS, Facts, collect
from khop.datasets.debian.graph import GRAPHS, LINKED, plain_tables, typed_tables, write_debian
from khop.datasets.debian.packages import Package
from khop.datasets.debian.words import word_buckets
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


def test_both_graphs_describe_packages_alike() -> None:
    plain, typed = plain_tables(FACTS)[0]["package"], typed_tables(FACTS)[0]["package"]
    assert torch.equal(torch.as_tensor(plain.columns["x"]), torch.as_tensor(typed.columns["x"]))
    assert {name: list(ids) for name, ids in plain.splits.items()} == {
        name: list(ids) for name, ids in typed.splits.items()
    }


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
