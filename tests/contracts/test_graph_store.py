"""Every graph store in this process keeps the suite's promises; wrong ones are refused by name."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor

import khop
from khop.draw import DrawKey, DrawnNegatives, Frontier, FrontierByType, Neighbors, NeighborsByType, Positives
from khop.errors import Unsupported
from khop.graph.features.store import FeatureStore
from khop.graph.features.table import NO_COLUMNS
from khop.graph.rule import Hop
from khop.graph.store import CscGraph, DrawHop, GraphStore, GraphStoreBase
from khop.sampling.links.exclusion import WithoutEdges
from khop.schema import EdgeType, NodeType, Schema
from khop.testing import graph_members, graph_store
from khop.testing.graph_store import PROMISES, Make
from khop.testing.graphs import PlainGraph
from khop.testing.promises import BrokenPromise, keep_all


def opened(plain: PlainGraph) -> khop.Graph:
    """The graph for users, over a store."""
    return khop.Graph.of(plain.in_memory())


def without_nothing(plain: PlainGraph) -> WithoutEdges:
    """A view that excludes no edge."""
    return WithoutEdges(plain.in_memory(), {})


MAKERS: dict[str, Make] = {"Graph": opened, "WithoutEdges": without_nothing}  # others: beside their modules


@pytest.mark.parametrize("make", MAKERS.values(), ids=list(MAKERS))
@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.__name__)
def test_it_keeps(promise: Callable[[Make], None], make: Make) -> None:
    promise(make)


class Smallest(GraphStoreBase):
    """A store of one's own over khop's, with no more than it must have."""

    def __init__(self, inner: CscGraph) -> None:
        self.schema: Schema = inner.schema
        self.inner = inner

    def num_nodes(self, node_type: NodeType) -> int:
        return self.inner.num_nodes(node_type)

    def original_ids(self, node_type: NodeType) -> Tensor | None:
        return self.inner.original_ids(node_type)

    def sample_hop(self, frontier: FrontierByType, hop: Hop, key: DrawKey) -> NeighborsByType:
        return self.inner.sample_hop(frontier, hop, key)


@pytest.mark.long
def test_a_store_with_four_members_keeps_the_suite() -> None:
    keep_all(PROMISES, lambda plain: Smallest(plain.in_memory()))


class OtherKey(Smallest):
    def sample_hop(self, frontier: FrontierByType, hop: Hop, key: DrawKey) -> NeighborsByType:
        return self.inner.sample_hop(frontier, hop, key.plus(1))


class SortedFrontier(Smallest):
    """Rows come in the order of the ids."""

    def sample_hop(self, frontier: FrontierByType, hop: Hop, key: DrawKey) -> NeighborsByType:
        ordered = {t: replace(of, nodes=of.nodes.sort().values) for t, of in frontier.items()}
        return self.inner.sample_hop(ordered, hop, key)


class AlwaysEdgeIds(Smallest):
    def sample_hop(self, frontier: FrontierByType, hop: Hop, key: DrawKey) -> NeighborsByType:
        return self.inner.sample_hop(frontier, replace(hop, edge_ids=True), key)


class NoEmptyRows(Smallest):
    """Types with an empty frontier are left out."""

    def sample_hop(self, frontier: FrontierByType, hop: Hop, key: DrawKey) -> NeighborsByType:
        some = {t: of for t, of in frontier.items() if of.nodes.numel()}
        return self.inner.sample_hop(some, hop, key)


class Overwrites(Smallest):
    def sample_hop(self, frontier: FrontierByType, hop: Hop, key: DrawKey) -> NeighborsByType:
        drawn = self.inner.sample_hop(frontier, hop, key)
        for of_type in frontier.values():
            of_type.nodes.zero_()
        return drawn


class Clamps(Smallest):
    """A missing node counts as the last one."""

    def sample_hop(self, frontier: FrontierByType, hop: Hop, key: DrawKey) -> NeighborsByType:
        known = {
            t: Frontier(of.nodes.clamp(0, self.num_nodes(t) - 1), of.until, of.tree)
            for t, of in frontier.items()
        }
        return self.inner.sample_hop(known, hop, key)


class MiscountsEdges(Smallest):
    def num_edges(self, edge_type: EdgeType) -> int:
        return self.inner.num_edges(edge_type) + 1


class OutDegrees(Smallest):
    def in_degrees(self, edge_type: EdgeType, nodes: Tensor) -> Tensor:
        return self.inner.in_degrees(edge_type, nodes).flip(0)


class PlacesOneType(Smallest):
    """A device has the edges of one type alone."""

    @property
    def device_stores(self) -> tuple[CscGraph, FeatureStore]:
        return self.inner.only([("user", "buys", "item")]), NO_COLUMNS


class ForgetsIds(Smallest):
    def original_ids(self, node_type: NodeType) -> Tensor | None:
        return None


class ShortBounds(Smallest):
    def partition_bounds(self, node_type: NodeType) -> tuple[int, ...]:
        return (0, self.num_nodes(node_type) - 1)


class PreparesOnce(Smallest):
    """What is prepared replaces the graph."""

    def prepare(self, needs: Collection[object]) -> None:
        kept = {t: (torch.arange(0, csc.num_edges, 2),) for t, csc in self.inner.edges.items()}
        self.inner = self.inner.keeping(kept)


class OtherRows(Smallest):
    """`local_csc` is that of the opposite direction."""

    def local_csc(self, edge_type: EdgeType) -> object:
        csc = self.inner.csc(edge_type)
        return replace(csc, indices=csc.indices.flip(0))


class OtherValues(Smallest):
    """Columns of the joined edges are in the opposite order."""

    def in_one_piece(self, what: str) -> CscGraph:
        columns = {t: {n: c.flip(0) for n, c in of.items()} for t, of in self.inner.columns.items()}
        return replace(self.inner, columns=columns)


class OnlyInName(Smallest):
    def only(self, edge_types: Collection[EdgeType]) -> GraphStore:
        return self


class KeepsAll(Smallest):
    def keeping(self, kept: Mapping[EdgeType, Sequence[Tensor]]) -> GraphStore:
        return self


class NegativesByPlace(Smallest):
    """Negatives depend on the place in the batch."""

    def sample_negatives(
        self, edge_type: EdgeType, negatives: DrawnNegatives, positives: Positives, key: DrawKey
    ) -> Tensor:
        places = torch.arange(positives.positions.numel())
        return self.inner.sample_negatives(edge_type, negatives, replace(positives, positions=places), key)


class SortedTypes(Smallest):
    """Entries come in the order of their names."""

    def sample_hop(self, frontier: FrontierByType, hop: Hop, key: DrawKey) -> NeighborsByType:
        return dict(sorted(self.inner.sample_hop(frontier, hop, key).items()))


class AllTypes(Smallest):
    """Types without a frontier have an entry without rows."""

    def sample_hop(self, frontier: FrontierByType, hop: Hop, key: DrawKey) -> NeighborsByType:
        none = {t: Frontier(torch.empty(0, dtype=torch.int64)) for t in self.schema.node_types}
        return self.inner.sample_hop({**none, **frontier}, hop, key)


class SkipsEmptyRows(Smallest):
    def sample_hop(self, frontier: FrontierByType, hop: Hop, key: DrawKey) -> NeighborsByType:
        drawn = self.inner.sample_hop(frontier, hop, key)
        return {t: replace(of, offsets=of.offsets.unique()) for t, of in drawn.items()}


class SameForAllHops(Smallest):
    def sample_hop(self, frontier: FrontierByType, hop: Hop, key: DrawKey) -> NeighborsByType:
        return self.inner.sample_hop(frontier, replace(hop, number=1), key)


class OneAtATime(Smallest):
    """A hop beside another one draws by another key."""

    inside = 0
    lock = threading.Lock()

    def sample_hop(self, frontier: FrontierByType, hop: Hop, key: DrawKey) -> NeighborsByType:
        with self.lock:
            self.inside += 1
            others = self.inside - 1
        time.sleep(0.001)
        drawn = self.inner.sample_hop(frontier, hop, key.plus(others))
        with self.lock:
            self.inside -= 1
        return drawn


class SplitByThreads(Smallest):
    """Threads that share a large frontier draw by keys of their own."""

    def sample_hop(self, frontier: FrontierByType, hop: Hop, key: DrawKey) -> NeighborsByType:
        is_shared = hop.threads > 1 and any(of.nodes.numel() >= 600 for of in frontier.values())
        return self.inner.sample_hop(frontier, hop, key.plus(is_shared))


class LeavesOutUnknown(Smallest):
    """Edge types that do not exist have no edges."""

    def sample_hop(self, frontier: FrontierByType, hop: Hop, key: DrawKey) -> NeighborsByType:
        known = {t: fanout for t, fanout in hop.fanouts.items() if t in self.inner.edges}
        return self.inner.sample_hop(frontier, replace(hop, fanouts=known), key)


class AnyFanout(Smallest):
    """Every fanout below 0 means all neighbors."""

    def sample_hop(self, frontier: FrontierByType, hop: Hop, key: DrawKey) -> NeighborsByType:
        fanouts = {t: max(fanout, -1) for t, fanout in hop.fanouts.items()}
        return self.inner.sample_hop(frontier, replace(hop, fanouts=fanouts), key)


class NoTimes(Smallest):
    def sample_hop(self, frontier: FrontierByType, hop: Hop, key: DrawKey) -> NeighborsByType:
        without = {t: replace(of, until=None) for t, of in frontier.items()}
        return self.inner.sample_hop(without, hop, key)


class OtherHops(Smallest):
    def for_hops(self, hops: Sequence[Hop]) -> DrawHop:
        return OtherKey(self.inner).sample_hop


class OtherDevice(Smallest):
    """Neighbors come on another device than the frontier."""

    def sample_hop(self, frontier: FrontierByType, hop: Hop, key: DrawKey) -> NeighborsByType:
        drawn = self.inner.sample_hop(frontier, hop, key)
        return {t: Neighbors(of.offsets.to("meta"), of.nodes.to("meta")) for t, of in drawn.items()}


class AnyNegatives(Smallest):
    """An edge type that does not exist has every node as a candidate."""

    def sample_negatives(
        self, edge_type: EdgeType, negatives: DrawnNegatives, positives: Positives, key: DrawKey
    ) -> Tensor:
        return torch.zeros(positives.sources.numel(), negatives.per_positive, dtype=torch.int64)


class SaysNothing(Smallest):
    def only(self, edge_types: Collection[EdgeType]) -> GraphStore:
        raise Unsupported


WRONG: dict[type[Smallest], tuple[Callable[[Make], None], str]] = {
    OtherKey: (
        graph_store.draws_follow_the_specification,
        "Sample the neighbors that docs/randomness.md specifies",
    ),
    SortedFrontier: (
        graph_store.rows_keep_the_order_of_the_frontier,
        "Keep rows in the order of the frontier",
    ),
    AlwaysEdgeIds: (
        graph_store.edge_ids_come_on_request,
        "edges are returned, although hop.edge_ids is False",
    ),
    NoEmptyRows: (
        graph_store.an_empty_frontier_has_an_entry,
        "Return an entry without rows for an empty frontier",
    ),
    Overwrites: (
        graph_store.the_frontier_does_not_change,
        "nodes of the frontier after the hop: [0, 0, 0], must be [4, 4, 1]",
    ),
    Clamps: (graph_store.a_missing_node_is_named, "node 9 of 9: no error was raised, must be a ValueError"),
    MiscountsEdges: (graph_members.it_states_types_and_counts, "num_edges of ('user', 'buys', 'item')"),
    PlacesOneType: (
        graph_members.device_stores_have_the_nodes_and_edges,
        "edge types of device_stores",
    ),
    OutDegrees: (graph_members.in_degrees_are_the_lengths_of_rows, "in_degrees of ('user', 'buys', 'item')"),
    ForgetsIds: (
        graph_members.original_ids_are_those_before_renumbering,
        "is None, must be [",
    ),
    ShortBounds: (graph_members.partition_bounds_cover_all_nodes, "must ascend from 0 to 6"),
    PreparesOnce: (graph_members.preparing_changes_no_draw, "Accept any needs in `prepare`"),
    OtherValues: (
        graph_members.edge_values_are_those_of_the_column,
        "edge_values of ('item', 'like', 'item'), edges",
    ),
    OtherRows: (
        graph_members.whole_edges_are_those_of_the_graph,
        "local_csc of ('user', 'buys', 'item'): indices",
    ),
    OnlyInName: (
        graph_members.some_edge_types_are_those_of_the_graph,
        "edge types of only([LIKE])",
    ),
    KeepsAll: (graph_members.kept_edges_are_those_that_were_named, "after keeping every third edge"),
    NegativesByPlace: (
        graph_members.negatives_follow_the_specification,
        "Sample the negatives that docs/randomness.md specifies",
    ),
    SortedTypes: (graph_store.entries_follow_the_order_of_the_fanouts, "edge types: "),
    AllTypes: (graph_store.types_without_frontier_have_no_entry, "edge types: "),
    SkipsEmptyRows: (graph_store.a_node_without_edges_has_an_empty_row, "rows of items 8, 0 and 8"),
    SameForAllHops: (
        graph_store.draws_depend_on_key_hop_and_edge_type,
        "another hop draws the same neighbors",
    ),
    OneAtATime: (graph_store.threads_share_it, "four threads draw other neighbors than one"),
    SplitByThreads: (
        graph_store.numbers_of_threads_change_no_draw,
        "a hop with three threads draws other neighbors than with one",
    ),
    LeavesOutUnknown: (graph_store.a_missing_type_is_named, "'sells', 'item'): no error was raised"),
    AnyFanout: (graph_store.a_wrong_fanout_is_named, "fanout -2: no error was raised"),
    NoTimes: (graph_store.time_limits_need_a_rule_that_reads_them, "time limits: no error was raised"),
    OtherHops: (graph_members.hops_are_drawn_alike_by_their_object, "nodes of"),
    OtherDevice: (graph_members.results_are_on_the_frontiers_device, "devices of offsets and nodes"),
    AnyNegatives: (
        graph_members.a_missing_edge_type_of_negatives_is_named,
        "no error was raised, must be a ValueError",
    ),
    SaysNothing: (
        graph_members.some_edge_types_are_those_of_the_graph,
        "Unsupported was raised without a message with the remedy",
    ),
}


@pytest.mark.core(6)
@pytest.mark.parametrize("kind", WRONG, ids=lambda kind: kind.__name__)
def test_a_wrong_store_is_refused_by_what_is_wrong(kind: type[Smallest], few_examples: None) -> None:
    promise, sentence = WRONG[kind]
    assert promise in PROMISES
    with pytest.raises(BrokenPromise, match=re.escape(sentence)):
        promise(lambda plain: kind(plain.in_memory()))


def test_each_promise_has_a_wrong_store() -> None:
    assert {promise for promise, _ in WRONG.values()} == set(PROMISES)


def test_an_error_of_the_store_itself_names_the_promise() -> None:
    class Fails(Smallest):
        def num_nodes(self, node_type: NodeType) -> int:
            raise KeyError(node_type)

    with pytest.raises(KeyError) as caught:
        keep_all(graph_members.PROMISES, lambda plain: Fails(plain.in_memory()))
    assert any("Return the types of the graph" in note for note in caught.value.__notes__)
