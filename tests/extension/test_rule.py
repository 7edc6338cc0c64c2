"""Two sampling rules written outside khop, by `reference` alone: in one process and on ranks with parts."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import Tensor

import khop
from khop.draw import DrawKey, Frontier, Neighbors
from khop.graph.folder import open_folder
from khop.graph.partitions.parts_folder import open_parts
from khop.graph.rule import EdgeColumn, Hop, RuleNeed, SourceIds, reads_times
from khop.graph.store import CscGraph, csc_graph_from_edges
from khop.kernels.draw_request import DrawRequest
from khop.kernels.philox import mix64_reference
from khop.sampling.sampler import NeighborSampler
from khop.schema import EdgeType
from khop.testing.rule import PROMISES
from support.covered import covered
from support.parts_as_whole import OldIds, assert_same
from support.small_typed_folders import write_typed_graph
from support.started_ranks import StartedRanks


@dataclass(frozen=True)
class EverySecond(khop.RuleBase):
    """Every second edge of a row, then `fanout` of these, uniformly."""

    first: int = 0  # 0: even places of the row, 1: odd ones

    def reference(self, request: DrawRequest) -> Neighbors:
        rows, edges = edges_of(request, step=2, first=self.first)
        keys = request.rows.keys()
        lots = mix64_reference((keys[:, 0] ^ (keys[:, 1] << 32) ^ request.rows.stream)[rows])
        lots = mix64_reference(lots ^ mix64_reference(request.rows.ids())[rows])
        places = edges - request.csc.indptr[request.rows.nodes][rows]
        return smallest(request, rows, edges, mix64_reference(lots ^ places))


@dataclass(frozen=True)
class TopK(khop.RuleBase):
    """The `fanout` edges of a row with the largest values of a column, which are their weights.

    Equal values: the source with the smaller original id comes first. Nothing is drawn.
    """

    column: str

    def has_weights(self, fanout: int) -> bool:
        return True

    def needs(self, edge_type: EdgeType) -> tuple[RuleNeed[Tensor], ...]:
        return (EdgeColumn(edge_type, self.column), SourceIds(edge_type))

    def reference(self, request: DrawRequest) -> Neighbors:
        rows, edges = edges_of(request)
        assert request.source_ids is not None
        values = request.columns.get(self.column, torch.ones(request.csc.num_edges)).float()
        by_source = request.source_ids[edges].argsort(stable=True)
        order = by_source[values[edges][by_source].argsort(stable=True, descending=True)]
        found = smallest(request, rows, edges, order.argsort())
        assert found.edges is not None
        return Neighbors(found.offsets, found.nodes, found.edges, values[found.edges])


def edges_of(request: DrawRequest, step: int = 1, first: int = 0) -> tuple[Tensor, Tensor]:
    """Row and position of every edge that may be drawn; of each row only every `step`-th one."""
    begin, end = request.rows.bounds(request.csc)
    degrees = end - begin
    rows = torch.repeat_interleave(torch.arange(degrees.numel()), degrees)
    edges = torch.arange(rows.numel()) + (begin - (degrees.cumsum(0) - degrees))[rows]
    chosen = (edges - request.csc.indptr[request.rows.nodes][rows]) % step == first
    return rows[chosen], edges[chosen]


def smallest(request: DrawRequest, rows: Tensor, edges: Tensor, values: Tensor) -> Neighbors:
    """The edges with the smallest values of each row, as many as the fanout."""
    order = values.argsort(stable=True)
    order = order[rows[order].argsort(stable=True)]
    counts = torch.bincount(rows, minlength=request.rows.nodes.numel())
    places = torch.arange(rows.numel()) - (counts.cumsum(0) - counts)[rows]
    if request.fanout >= 0:
        order = order[places < request.fanout]
        counts = counts.clamp(max=request.fanout)
    return request.neighbors(counts, edges[order])


TO = ("node", "to", "node")
RULES = {
    "every second": EverySecond(),
    "odd": EverySecond(first=1),
    "top": TopK("weight"),
    "every second, in time": khop.Temporal("time", inner=EverySecond()),
    "top, in time": khop.Temporal("time", inner=TopK("weight")),
}


@pytest.mark.core(4)
@pytest.mark.parametrize("rule", RULES.values(), ids=list(RULES))
@pytest.mark.parametrize("keeps", PROMISES, ids=lambda keeps: keeps.__name__)
def test_it_keeps_the_promises_of_a_rule(keeps: Callable[[khop.Rule], None], rule: khop.Rule) -> None:
    keeps(rule)


def test_in_one_process_the_rules_draw_what_they_say() -> None:
    graph = one_row(weight=[1.0, 5.0, 5.0, 2.0], sources=[3, 2, 1, 4])
    frontier, key = {"node": Frontier(torch.tensor([0]))}, DrawKey(4)
    top = graph.sample_hop(frontier, Hop(1, {TO: 3}, TopK("weight")), key)[TO]
    assert top.nodes.tolist() == [1, 2, 4]
    assert top.weights is not None
    assert top.weights.tolist() == [5.0, 5.0, 2.0]
    every_second = graph.sample_hop(frontier, Hop(1, {TO: 5}, EverySecond()), key)[TO]
    assert sorted(every_second.nodes.tolist()) == [1, 3]


@pytest.mark.long
def test_on_ranks_with_parts_batches_are_those_of_one_process(tmp_path: Path, ranks: StartedRanks) -> None:
    whole = write_typed_graph(tmp_path / "whole", renumbered=True)
    khop.partition_graph(whole, tmp_path / "parts", 3, method="random")
    ranks.launch(drawn_on_ranks, 2, (str(tmp_path),))
    for rank in range(2):
        compared = json.loads((tmp_path / f"{rank}.json").read_text())
        assert list(compared) == list(RULES)
        assert min(compared.values()) > 10


@covered
def drawn_on_ranks(rank: int, device: torch.device, home: str) -> None:
    """Each rank's own seeds, by every rule, against the graph before partitioning."""
    here, compared = Path(home), {}
    graph, whole = khop.open_graph(here / "parts", placement="all"), khop.open_graph(here / "whole")
    ids = OldIds(open_folder(here / "whole"), open_parts(here / "parts"))
    nodes = {"user": torch.arange(30) * 7 % 300, "item": torch.arange(20 * rank + 5) * 11 % 200}
    positions = {t: torch.arange(of.numel()) + 100 * rank for t, of in nodes.items()}
    for name, rule in RULES.items():
        times = {t: of * 37 % 9000 for t, of in nodes.items()} if reads_times(rule) else None
        wanted, found = (
            NeighborSampler(of, [3, 2], rule=rule, edge_ids=True).sample(
                khop.Seeds(asked, positions, times), DrawKey(9)
            )
            for of, asked in ((whole, nodes), (graph, {t: ids.new_nodes(t, of) for t, of in nodes.items()}))
        )
        assert_same(ids, found, wanted)
        weights = [adjacency.weight for block in found.blocks for adjacency in block.adjacencies.values()]
        assert all((weight is not None) == rule.has_weights(2) for weight in weights)
        compared[name] = sum(adjacency.indices.numel() for adjacency in found.blocks[0].adjacencies.values())
    (here / f"{rank}.json").write_text(json.dumps(compared))


def one_row(weight: list[float], sources: list[int]) -> CscGraph:
    """Node 0 has in-edges from these sources."""
    ends = torch.tensor(sources), torch.zeros(len(sources), dtype=torch.int64)
    return csc_graph_from_edges({"node": 5}, {TO: ends}, columns={TO: {"weight": torch.tensor(weight)}})
