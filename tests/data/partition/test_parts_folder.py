"""What is known of a folder of parts: of all nodes everywhere, of the rest where all parts lie.

Digests of edges: equal sums over any parts, different after any change of an edge or its place.
"""

from __future__ import annotations

import os
import pickle
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import khop
from khop.api.partition import partition_graph
from khop.data.partition.verify import verify_partition
from khop.distributed.exchange.row_wire import Wire
from khop.distributed.placement import PartitionOptions
from khop.draw import DrawKey, Frontier
from khop.graph.folder import open_folder
from khop.graph.partitions.local_partitions import LocalPartitionGraph, joined_graph
from khop.graph.partitions.parts_folder import edge_digest, known_folder, open_parts
from khop.graph.partitions.placements import Placement
from khop.graph.rule import Hop
from khop.kernels.csc import Csc
from khop.sampling.rules.uniform import Uniform
from khop.sampling.rules.weighted import Weighted
from khop.testing.graph_store import same
from support.parts_as_whole import OldIds
from support.small_typed_folders import BOUGHT, BUYS, write_typed_graph


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("shop")
    partition_graph(write_typed_graph(home / "whole", renumbered=True), home / "parts", 3, method="random")
    return home


def test_one_part_is_enough_to_know_of_all_nodes(shop: Path) -> None:
    whole, folder = open_folder(shop / "whole"), open_parts(shop / "parts", [1])
    old = OldIds(whole, open_parts(shop / "parts")).nodes
    assert folder.schema.node_types == whole.schema.node_types
    assert folder.split_names == whole.split_names
    for name in whole.split_names:
        for node_type, ids in whole.split(name).items():
            assert torch.equal(old[node_type][folder.split(name)[node_type]], ids)
    assert torch.equal(folder.columns()["user"]["age"], whole.columns()["user"]["age"][old["user"]])
    assert torch.equal(folder.original_ids("user"), whole.columns()["user"]["original_id"][old["user"]])
    assert torch.equal(folder.original_ids("item"), old["item"])
    degrees = folder.whole_array("edges/user__buys__item/degrees.npy")
    assert torch.equal(degrees.long(), whole.csc(BUYS).indptr.diff()[old["item"]])
    assert {t: folder.num_nodes(t) for t in old} == {t: whole.num_nodes(t) for t in old}
    assert folder.num_edges(BUYS) == whole.num_edges(BUYS)


def test_what_lies_with_other_parts_is_not_to_be_had_from_one(shop: Path) -> None:
    columns = open_parts(shop / "parts", [1]).columns()
    assert "x" in columns["user"]
    with pytest.raises(
        ValueError, match=r"column 'x' of 'user': is in 3 parts, but only part 1 of .* is open"
    ):
        columns["user"]["x"]
    with pytest.raises(ValueError, match="the graph in one piece: is in 3 parts, but only parts 0 to 1 of"):
        joined_graph(open_parts(shop / "parts", [0, 1]))


def test_all_parts_together_are_the_graph_by_other_ids(shop: Path) -> None:
    whole, graph = khop.open_graph(shop / "whole"), khop.open_graph(shop / "parts")
    assert graph.folder is not None
    ids = OldIds(open_folder(shop / "whole"), open_parts(shop / "parts"))
    for edge_type in (BUYS, BOUGHT):
        csc, old = graph.csc(edge_type), ids.edges[edge_type]
        assert torch.equal(
            ids.nodes[edge_type[0]][csc.indices.long()], whole.csc(edge_type).indices[old].long()
        )
        assert csc.indptr[-1] == old.numel()
    for type_, of_type in whole.columns.items():
        old = ids.nodes[type_] if isinstance(type_, str) else ids.edges[type_]
        for name, column in of_type.items():
            assert torch.equal(graph.columns[type_][name], column[old])
    kept = {file.relative_to(shop / "parts").parts[2:] for file in (shop / "parts/derived").rglob("*.npy")}
    assert ("edges", "user__buys__item", "indices.npy") in kept
    assert set(graph.split("train")) == set(whole.split("train"))


def test_a_folder_of_parts_saved_as_a_graph_draws_what_it_drew(shop: Path, tmp_path: Path) -> None:
    graph = khop.open_graph(shop / "parts")
    saved = khop.open_graph(graph.save(tmp_path / "again"))
    seeds = khop.Seeds({"item": torch.arange(40)}, {"item": torch.arange(40)})
    samples = [khop.NeighborSampler(g, [4, 3]).sample(seeds, khop.DrawKey(3)) for g in (graph, saved)]
    for node_type, nodes in samples[0].nodes.items():
        assert torch.equal(samples[1].nodes[node_type], nodes)


def test_a_graph_of_parts_pickles_as_its_path(shop: Path) -> None:
    pickled = pickle.dumps(khop.open_graph(shop / "parts", placement="all", lanes=4, wire="int8"))
    assert len(pickled) < 1000
    graph = pickle.loads(pickled)
    assert graph.num_nodes("item") == 200
    assert graph.partition_options == PartitionOptions(
        Placement.ALL, 4, Wire.INT8
    )  # as ranks that open it share it


def test_what_is_known_needs_whichever_part_lies_here(shop: Path, tmp_path: Path) -> None:
    there = shutil.copytree(shop / "parts", tmp_path / "parts")
    shutil.rmtree(there / "part-0000")
    assert known_folder(there).split_names == known_folder(shop / "whole").split_names
    assert known_folder(there).fingerprint == open_parts(shop / "parts").fingerprint
    shutil.rmtree(there / "part-0001")
    shutil.rmtree(there / "part-0002")
    with pytest.raises(ValueError, match="part 0 of 3 is not on this machine"):
        known_folder(there)


def test_parts_whose_columns_are_not_here_are_drawn_from_all_the_same(shop: Path, tmp_path: Path) -> None:
    there = tmp_path / "parts"
    shutil.copytree(shop / "parts", there, ignore=shutil.ignore_patterns("derived"))
    for part in ("part-0000", "part-0002"):
        shutil.rmtree(there / part / "nodes")
    (there / "derived").touch()  # nobody can write into it
    pickled = pickle.loads(pickle.dumps(open_parts(there, columns_of=range(1, 2))))
    hop = Hop(1, {BUYS: 3, BOUGHT: 2}, Weighted("weight"))
    frontier = {"item": Frontier(torch.arange(200)), "user": Frontier(torch.arange(300))}
    for drawn in (hop, replace(hop, rule=Uniform())):
        found, wanted = (
            LocalPartitionGraph(f).sample_hop(frontier, drawn, DrawKey(2))
            for f in (pickled, open_parts(shop / "parts"))
        )
        assert same(found, wanted)


def test_names_that_are_not_there_are_named(shop: Path) -> None:
    folder = open_parts(shop / "parts")
    with pytest.raises(ValueError, match=r"no split 'trian'; there are \['train', 'val', 'test'\]"):
        folder.split("trian")
    with pytest.raises(KeyError, match="height"):
        folder.columns()["user"]["height"]


def test_an_array_of_all_nodes_that_is_damaged_is_found(shop: Path, tmp_path: Path) -> None:
    there = shutil.copytree(shop / "parts", tmp_path / "parts")
    assert verify_partition(there) == []
    with (there / "nodes/user/age.npy").open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"\x7f")
    assert [finding.file for finding in verify_partition(there)] == ["nodes/user/age.npy"]
    with (there / "nodes/user/age.npy").open("ab") as file:
        file.write(b"\0")
    with pytest.raises(ValueError, match=r"age.npy: has .* bytes, .*copy it again"):
        open_parts(there).columns()["user"]["age"]


ROWS = st.lists(st.lists(st.integers(0, 6), max_size=4), min_size=1, max_size=7)
WORD = (1 << 64) - 1


def csc_of(rows: list[list[int]]) -> Csc:
    degrees = torch.tensor([0, *map(len, rows)])
    return Csc(degrees.cumsum(0), torch.tensor([s for row in rows for s in row], dtype=torch.int64), 7)


@given(
    rows=ROWS, parts=st.lists(st.integers(0, 2), min_size=7, max_size=7), sources=st.permutations(range(7))
)
def test_parts_in_another_numbering_sum_up_to_the_graph(
    rows: list[list[int]], parts: list[int], sources: list[int]
) -> None:
    whole = edge_digest(csc_of(rows), None, None)
    renumbered = [[sources.index(source) for source in row] for row in rows]
    total = 0
    for part in range(3):
        own = [row for row in range(len(rows)) if parts[row] == part]
        if own:
            of_part = csc_of([renumbered[row] for row in own])
            total += edge_digest(of_part, torch.tensor(sources), torch.tensor(own))
    assert total & WORD == whole


@given(rows=ROWS, place=st.integers(0, 40), source=st.integers(0, 6))
def test_one_other_source_changes_the_digest(rows: list[list[int]], place: int, source: int) -> None:
    changed = [list(row) for row in rows]
    edges = [(row, at) for row, of_row in enumerate(rows) for at in range(len(of_row))]
    if edges:
        row, at = edges[place % len(edges)]
        changed[row][at] = source
    is_equal = edge_digest(csc_of(rows), None, None) == edge_digest(csc_of(changed), None, None)
    assert is_equal is (changed == rows)


def test_the_place_in_a_row_counts() -> None:
    def digest(*row: int) -> int:
        return edge_digest(csc_of([list(row)]), None, torch.tensor([3]))

    assert len({digest(0, 1, 2), digest(1, 0, 2), digest(0, 1), digest(0, 0, 1)}) == 4
