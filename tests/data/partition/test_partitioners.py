"""Balanced quantities: no part holds more than its share and the slack.

METIS finds the parts of a graph that falls apart, whatever the direction and type of its edges.

Partitioning without edges: equal shares of each type, and hashed nodes that keep their part.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from khop.api.partition import partition_graph
from khop.data.partition import partitioners
from khop.data.partition.partitioners import (
    AssignRequest,
    Balance,
    HashParts,
    Metis,
    Partitioner,
    RandomParts,
    RangeParts,
    TypeNumbering,
    balance_of,
)
from khop.graph.atomic import Meter
from khop.graph.folder import open_folder
from khop.graph.partitions.parts_folder import open_part
from khop.graph.store import CscGraph, csc_graph_from_edges
from khop.kernels.philox import philox
from khop.schema import Schema
from support.small_typed_folders import write_typed_graph


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_typed_graph(tmp_path_factory.mktemp("graphs") / "shop")


@pytest.mark.parametrize("method", ["ldg", "fennel"])
def test_no_part_is_fuller_than_its_share_where_bytes_are_balanced(
    shop: Path, tmp_path: Path, method: str
) -> None:
    """A user has 14 bytes and an item 4, so parts of as many nodes could be unequally full."""
    book = partition_graph(shop, tmp_path / "parts", 3, method=method, balance=["bytes"], slack=0.02)
    full = [
        sum(
            column.nbytes
            for node_type in part.schema.node_types
            for name, column in part.columns()[node_type].items()
            if name != "original_id"  # what partitioning adds
        )
        for part in (open_part(tmp_path / "parts", book, number) for number in range(3))
    ]
    assert sum(full) == 300 * 14 + 200 * 4
    assert max(full) <= 1.02 * sum(full) / 3
    assert book.quality.shares["bytes"] == pytest.approx([3 * of_part / sum(full) for of_part in full])


def test_nodes_of_all_types_have_one_numbering() -> None:
    numbering = TypeNumbering.of({"user": 3, "tag": 0, "item": 2})
    assert (numbering.num_nodes, numbering.first("tag"), numbering.first("item")) == (5, 3, 3)
    values = {t: of_type.tolist() for t, of_type in numbering.by_type(torch.arange(5)).items()}
    assert values == {"user": [0, 1, 2], "tag": [], "item": [3, 4]}


def test_limits_are_shares_with_the_slack(shop: Path) -> None:
    folder = open_folder(shop)
    numbering = TypeNumbering.of({t: folder.num_nodes(t) for t in folder.schema.node_types})
    balance = balance_of(folder, numbering, 4, ["nodes", "edges", "train"], 0.1)
    edges = sum(folder.num_edges(t) for t in folder.schema.edge_types)
    seeds = sum(ids.numel() for ids in folder.split("train").values())
    totals = {"user nodes": 300, "item nodes": 200, "tag nodes": 7, "edges": edges, "train": seeds}
    assert balance.totals == totals
    for name, total in totals.items():
        assert total / 4 <= balance.limits[name].capacity <= max(1.1 * total / 4, total / 4 + 1)
    assert int((balance.members & balance.limits["train"].member).count_nonzero()) == seeds


def test_two_components_are_two_parts() -> None:
    """Users and items of two groups, which buy within their group; self-loops do not matter."""
    users, items = torch.arange(40), torch.arange(40)
    bought = (users + 2) % 40  # even users buy even items
    edges = {
        ("user", "buys", "item"): (torch.cat([users, users]), torch.cat([items, bought])),
        ("user", "knows", "user"): (torch.cat([users, users]), torch.cat([users, bought])),
    }
    graph = csc_graph_from_edges({"user": 40, "item": 40}, edges)
    numbering = TypeNumbering.of(graph.counts)
    request = AssignRequest(graph, numbering, Balance({}, {}, torch.empty(0)), 2, 1, Meter(0))
    parts = numbering.by_type(Metis(1).assign(request))
    even = parts["user"][0]
    for of_type in parts.values():
        assert of_type.dtype == torch.int32
        assert torch.equal(of_type == even, torch.arange(40) % 2 == 0)


def assigned(
    method: Partitioner, counts: Mapping[str, int], parts: int, ids: torch.Tensor | None = None
) -> dict:
    graph = CscGraph(Schema(tuple(counts), ()), counts, {}, {} if ids is None else {"user": ids})
    numbering = TypeNumbering.of(counts)
    request = AssignRequest(graph, numbering, Balance({}, {}, torch.empty(0)), parts, 1, Meter(0))
    return numbering.by_type(method.assign(request))


@pytest.mark.parametrize("method", [RandomParts(3), RangeParts()], ids=["random", "range"])
@given(users=st.integers(0, 40), items=st.integers(0, 40), parts=st.integers(1, 7))
def test_parts_have_equal_numbers_of_each_type(
    method: Partitioner, users: int, items: int, parts: int
) -> None:
    for count, of_type in zip(
        (users, items), assigned(method, {"user": users, "item": items}, parts).values(), strict=True
    ):
        sizes = torch.bincount(of_type, minlength=parts)
        assert (of_type.dtype, sizes.numel(), int(sizes.sum())) == (torch.int32, parts, count)
        assert int(sizes.max() - sizes.min()) <= 1
        if isinstance(method, RangeParts):
            assert of_type.tolist() == sorted(of_type.tolist())


def test_a_hashed_node_keeps_its_part_in_another_graph() -> None:
    ids = torch.tensor([70, 3, 1 << 40, 12, 5])
    order = torch.tensor([4, 2, 0])
    before = assigned(HashParts(9), {"user": 5}, 3, ids)["user"]
    after = assigned(HashParts(9), {"user": 3}, 3, ids[order])["user"]
    assert torch.equal(after, before[order])


def test_words_are_drawn_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[int] = []

    def counted(seed: int, counters: torch.Tensor) -> torch.Tensor:
        drawn.append(len(counters))
        return philox(seed, counters)

    whole = [assigned(method, {"user": 2500}, 3)["user"] for method in (HashParts(9), RandomParts(9))]
    monkeypatch.setattr(partitioners, "_AT_ONCE", 1000)
    monkeypatch.setattr(partitioners, "philox", counted)
    some = [assigned(method, {"user": 2500}, 3)["user"] for method in (HashParts(9), RandomParts(9))]
    assert drawn == [1000, 1000, 500] * 2
    assert all(map(torch.equal, whole, some))


def test_metis_takes_every_seed_and_refuses_graphs_beyond_its_integers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pymetis = pytest.importorskip("pymetis")
    ends = torch.arange(100), torch.arange(100).roll(1)
    graph = csc_graph_from_edges({"n": 100}, {("n", "to", "n"): ends})
    numbering = TypeNumbering.of(graph.counts)
    request = AssignRequest(graph, numbering, Balance({}, {}, torch.empty(0)), 2, 1, Meter(0))
    for seed in (2**63, 2**64 - 1):
        assert torch.bincount(Metis(seed).assign(request)).tolist() == [50, 50]
    monkeypatch.setattr(pymetis, "zero_copy_dtype", lambda: np.dtype(np.int8))
    with pytest.raises(
        ValueError, match="100 nodes and 200 edges, .* exceed the 127 of pymetis; use another"
    ):
        Metis(0).assign(request)


def test_hashes_spread_nodes_evenly_and_differ_by_seed() -> None:
    first, second = (assigned(HashParts(seed), {"user": 6000}, 3)["user"] for seed in (1, 2))
    assert all(abs(int(size) - 2000) < 200 for size in torch.bincount(first))
    assert not torch.equal(first, second)
