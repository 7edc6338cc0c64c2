"""Parts of which some edges are wanted draw as a whole graph of those edges does.

Columns of parts lie where they are asked to, and rows kept in memory are those that lie in each part.

Joined parts are the graph before partitioning, by original ids, and are made once.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from khop.api.partition import partition_graph
from khop.draw import DrawKey, Frontier
from khop.graph.build import write_graph
from khop.graph.features.store import CachePlan, Rows
from khop.graph.features.table import ColumnPieces, DiskPiece
from khop.graph.folder import open_folder
from khop.graph.partitions.local_partitions import (
    LocalPartitionFeatures,
    LocalPartitions,
    column_pieces,
    is_on_disk,
    joined_graph,
)
from khop.graph.partitions.parts_folder import PartsFolder, open_parts
from khop.graph.rule import Hop, Rule
from khop.graph.store import CscGraph, open_csc_graph
from khop.graph.tables import NodeTable
from khop.kernels.csc import Csc
from khop.sampling.rules.labor import Labor
from khop.sampling.rules.temporal import Temporal
from khop.sampling.rules.top_k import TopK
from khop.sampling.rules.uniform import Uniform
from khop.sampling.rules.weighted import Weighted
from support.parts_as_whole import OldIds
from support.small_typed_folders import BOUGHT, BUYS, LIKE, write_typed_graph

KEY = DrawKey(3)
RULES = (
    Uniform(),
    Uniform(replacement=True),
    Weighted("weight"),
    Temporal("time", inner=Weighted("weight")),
    Temporal("time", limit="edge"),
    Labor(),
    Temporal("time", inner=Labor(kappa=2)),
    TopK("weight"),
)


@pytest.fixture(scope="module")
def ids(tmp_path_factory: pytest.TempPathFactory) -> OldIds:
    home = tmp_path_factory.mktemp("held")
    whole = write_typed_graph(home / "whole", renumbered=True)
    partition_graph(whole, home / "parts", 3)
    return OldIds(open_folder(whole), open_parts(home / "parts"))


def every_third_left_out(ids: OldIds) -> tuple[CscGraph, LocalPartitions, torch.Tensor]:
    """Of purchases, by old positions, of the whole and of its parts; where those that are left stood."""
    whole, held = open_csc_graph(ids.whole), LocalPartitions.of(ids.parts)
    is_kept = torch.arange(whole.csc(BUYS).num_edges) % 3 > 0
    firsts, kept = ids.parts.bounds(BUYS), []
    for (csc, _), first in zip(held.rows(BUYS), firsts, strict=False):
        old = ids.edges[BUYS][first : first + csc.num_edges]
        kept.append(is_kept[old].nonzero().squeeze(1))
    positions = is_kept.nonzero().squeeze(1)
    return whole.keeping({BUYS: [positions]}), held.keeping({BUYS: kept}), positions


@pytest.mark.core(3)
@pytest.mark.parametrize("rule", RULES, ids=str)
def test_draws_are_those_of_a_graph_without_the_edges_by_their_positions_with_them(
    ids: OldIds, rule: Rule
) -> None:
    graph, held, positions = every_third_left_out(ids)
    items = torch.arange(0, 200, 3)
    until = items * 50 if isinstance(rule, Temporal) else None
    hop = Hop(1, {BUYS: 5, LIKE: 3}, rule, edge_ids=True)
    wanted = graph.sample_hop({"item": Frontier(items, until)}, hop, KEY)
    found = held.sample_hop({"item": Frontier(ids.new_nodes("item", items), until)}, hop, KEY)
    for edge_type, theirs in wanted.items():
        ours = found[edge_type]
        assert theirs.edges is not None
        assert ours.edges is not None
        before = positions[theirs.edges] if edge_type == BUYS else theirs.edges
        assert torch.equal(ours.offsets, theirs.offsets)
        assert torch.equal(ids.nodes[edge_type[0]][ours.nodes.long()], theirs.nodes.long())
        assert torch.equal(ids.edges[edge_type][ours.edges], before)
        assert (ours.times is None) == (theirs.times is None) == (not rule.has_times)
        assert ours.times is None or torch.equal(ours.times, theirs.times)


def test_what_is_left_out_twice_is_left_out_once(ids: OldIds) -> None:
    _, held, positions = every_third_left_out(ids)
    assert held.thinned == {BUYS}
    again = held.keeping({BUYS: [torch.arange(csc.num_edges)[1::2] for csc, _ in held.rows(BUYS)]})
    counts = [csc.num_edges for csc, _ in again.rows(BUYS)]
    assert counts == [csc.num_edges // 2 for csc, _ in held.rows(BUYS)]
    weights = again.column(BUYS, "weight", [torch.arange(count) for count in counts])
    those = [
        row[1::2]
        for row in held.column(BUYS, "weight", [torch.arange(c.num_edges) for c, _ in held.rows(BUYS)])
    ]
    assert all(torch.equal(*pair) for pair in zip(weights, those, strict=True))
    assert sum(csc.num_edges for csc, _ in held.rows(BUYS)) == positions.numel()


def test_with_no_other_edge_types_there_are_no_other_node_types(ids: OldIds) -> None:
    held = LocalPartitions.of(ids.parts).only([BUYS, BOUGHT])
    assert held.schema.edge_types == (BUYS, BOUGHT)
    assert held.schema.node_types == ("user", "item")
    assert held.schema.reverse(BUYS) == BOUGHT
    assert held.only([BUYS]).schema.reverse(BUYS) is None
    with pytest.raises(ValueError, match=r"no edge type .*like"):
        held.only([LIKE])
    with pytest.raises(ValueError, match=r"no edge type .*like"):
        held.rows(LIKE)


NODES = 3000
PLENTY = 1 << 40


@pytest.fixture
def parts(tmp_path: Path) -> PartsFolder:
    columns = {"x": torch.randn(NODES, 9), "half": torch.randn(NODES, 3).half(), "age": torch.arange(NODES)}
    write_graph(tmp_path / "g", {"a": NodeTable(columns=columns)}, {})
    partition_graph(tmp_path / "g", tmp_path / "parts", 3, method="hash")
    return open_parts(tmp_path / "parts")


def on_disk(pieces: ColumnPieces) -> list[str]:
    return sorted(name for name, of_column in pieces.items() if is_on_disk({name: of_column}))


def test_columns_lie_where_they_are_asked_to_or_where_they_fit(parts: PartsFolder) -> None:
    assert on_disk(column_pieces(parts, {}, PLENTY)["a"]) == []
    assert on_disk(column_pieces(parts, {"half": "disk"}, PLENTY)["a"]) == ["half"]
    whole = sum(entry.data_bytes for part in parts.parts for entry in part.arrays.values())
    pieces = column_pieces(parts, {}, whole - NODES * 9 * 2)
    assert on_disk(pieces["a"]) == ["x"]
    places = {"x": "mapped", "half": "host"}
    assert on_disk(column_pieces(parts, places, 0)["a"]) == ["age", "original_id"]


def test_rows_in_memory_need_no_file(parts: PartsFolder) -> None:
    mapped = LocalPartitionFeatures(parts, room_bytes=PLENTY)
    disk = LocalPartitionFeatures(parts, places={"x": "disk", "half": "disk"}, room_bytes=PLENTY)
    visits = torch.rand(NODES, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    plan = CachePlan.of(parts.schema, {"a": ("x", "half", "age")}, {"a": visits}, 60_000)
    cached = disk.cached(plan)
    ids = torch.randint(NODES, (4000,), generator=torch.Generator().manual_seed(4))
    rows = Rows(ids, ("half", "age", "x"), {"x": 900}, frozenset({"half"}))
    expected = mapped.gather({"a": rows})["a"]
    for store in (disk, cached, cached.with_threads(2)):
        found = store.gather({"a": rows})["a"]
        assert list(found) == list(expected)
        assert all(torch.equal(found[name], expected[name]) for name in found)
    kept = plan.ids["a"]
    expected = mapped.gather({"a": Rows(kept, ("x",))})["a"]
    sizes = [piece.kept.shape[0] for piece in cached.pieces["a"]["x"] if isinstance(piece, DiskPiece)]
    assert len(sizes) == 3
    assert sum(sizes) == kept.numel()
    for part in parts.parts:
        os.truncate(part.path / "nodes/a/x.npy", 200)
    assert torch.equal(cached.gather({"a": Rows(kept, ("x",))})["a"]["x"], expected["x"])
    with pytest.raises(ValueError, match=r"x.npy: row .* cannot be read: the file ends before it"):
        disk.gather({"a": Rows(kept, ("x",))})


def rows_of(csc: Csc, sources: torch.Tensor) -> list[list[int]]:
    """The original ids of the sources of each row."""
    return [row.tolist() for row in sources[csc.indices.long()].tensor_split(csc.indptr[1:-1])]


def test_rows_are_those_of_the_graph_before(tmp_path: Path) -> None:
    whole = open_folder(write_typed_graph(tmp_path / "shop", renumbered=True))
    partition_graph(whole.path, tmp_path / "parts", 3)
    joined = joined_graph(open_parts(tmp_path / "parts"))
    before = {
        t: torch.arange(whole.num_nodes(t)) if (ids := whole.original_ids(t)) is None else ids
        for t in whole.schema.node_types
    }
    for edge_type in whole.schema.edge_types:
        source, _, destination = edge_type
        sources, destinations = joined.original_ids(source), joined.original_ids(destination)
        assert sources is not None
        assert destinations is not None
        rows = dict(zip(destinations.tolist(), rows_of(joined.csc(edge_type), sources), strict=True))
        expected = rows_of(whole.csc(edge_type), before[source])
        assert rows == dict(zip(before[destination].tolist(), expected, strict=True))
    files = {file: file.stat().st_mtime_ns for file in (tmp_path / "parts" / "derived").rglob("*.npy")}
    assert files
    joined_graph(open_parts(tmp_path / "parts"))
    assert {file: file.stat().st_mtime_ns for file in files} == files
