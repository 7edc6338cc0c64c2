"""Parts of which some edges are wanted draw as a whole graph of those edges does."""

from __future__ import annotations

import pytest
import torch

from khop.api.partition import partition_graph
from khop.draw import DrawKey, Frontier
from khop.graph.csc_graph import CscGraph, open_csc_graph
from khop.graph.folder import open_folder
from khop.partition.local_partitions import LocalPartitions
from khop.partition.parts_folder import open_parts
from khop.rules.rule import Hop, Rule
from khop.rules.temporal import Temporal
from khop.rules.uniform import Uniform
from khop.rules.weighted import Weighted
from support.parts_as_whole import OldIds
from support.small_typed_folders import BOUGHT, BUYS, LIKE, write_typed_graph

KEY = DrawKey(3)
RULES = (Uniform(), Uniform(replacement=True), Weighted("weight"), Temporal("time", inner=Weighted("weight")))


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
