"""A folder of parts behind the ids of the graph that was cut, so as to be asked what whole graphs promise."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from khop.batch import Adjacency, Sample
from khop.draw import DrawKey, DrawnNegatives, Frontier, FrontierByType, NeighborsByType, Positives
from khop.graph.features.store import FeatureStore, FeatureStoreBase, Gathered, Wanted
from khop.graph.folder import GraphFolder
from khop.graph.needs import Need
from khop.graph.partitions.parts_folder import PartsFolder
from khop.graph.rule import Hop
from khop.graph.store import GraphStore, GraphStoreBase
from khop.schema import EdgeType, NodeType, Schema, Specs


@dataclass(frozen=True)
class OldIds:
    """Which id of the graph that was cut each new one was, of nodes and of edges."""

    whole: GraphFolder
    parts: PartsFolder

    @cached_property
    def nodes(self) -> dict[NodeType, Tensor]:
        """By new id."""
        parts = self.parts
        new = {t: torch.cat([_originals(part, t) for part in parts.parts]) for t in parts.schema.node_types}
        old = {t: self.whole.original_ids(t) for t in new}
        return {t: ids if old[t] is None else _places(old[t], ids) for t, ids in new.items()}

    @cached_property
    def edges(self) -> dict[EdgeType, Tensor]:
        """By new position: rows keep their order."""
        found = {}
        for edge_type in self.parts.schema.edge_types:
            degrees = torch.cat([part.csc(edge_type).indptr.diff() for part in self.parts.parts])
            starts = self.whole.csc(edge_type).indptr[self.nodes[edge_type[2]]]
            shifts = (starts - (degrees.cumsum(0) - degrees)).repeat_interleave(degrees)
            found[edge_type] = torch.arange(shifts.numel()) + shifts
        return found

    def new_nodes(self, node_type: NodeType, ids: Tensor) -> Tensor:
        """The new ids of old ones; what is no node stays what it is."""
        return _known(self.nodes[node_type].argsort(), ids)

    def new_edges(self, edge_type: EdgeType, ids: Tensor) -> Tensor:
        return _known(self.edges[edge_type].argsort(), ids)


@dataclass(frozen=True)
class GraphAsWhole(GraphStoreBase):
    """A graph store of the old ids over one of the new."""

    ids: OldIds
    graph: GraphStore

    @property
    def schema(self) -> Schema:
        return self.graph.schema

    @property
    def is_collective(self) -> bool:
        return self.graph.is_collective

    def num_nodes(self, node_type: NodeType) -> int:
        return self.graph.num_nodes(node_type)

    def num_edges(self, edge_type: EdgeType) -> int:
        return self.graph.num_edges(edge_type)

    def original_ids(self, node_type: NodeType) -> Tensor | None:
        ids = self.graph.original_ids(node_type)
        return None if ids is None else ids[self.ids.nodes[node_type].argsort()]

    def prepare(self, needs: Collection[Need]) -> None:
        self.graph.prepare(needs)

    def sample_negatives(
        self, edge_type: EdgeType, negatives: DrawnNegatives, positives: Positives, key: DrawKey
    ) -> Tensor:
        source, _, destination = edge_type
        if source not in self.ids.nodes:
            return self.graph.sample_negatives(edge_type, negatives, positives, key)
        asked = replace(positives, sources=self.ids.new_nodes(source, positives.sources))
        return self.ids.nodes[destination][self.graph.sample_negatives(edge_type, negatives, asked, key)]

    def sample_hop(self, frontier: FrontierByType, hop: Hop, key: DrawKey) -> NeighborsByType:
        drawn = self.graph.sample_hop({t: self._new(t, of) for t, of in frontier.items()}, hop, key)
        return {
            t: replace(
                found,
                nodes=self.ids.nodes[t[0]][found.nodes.long()],
                edges=None if found.edges is None else self.ids.edges[t][found.edges],
            )
            for t, found in drawn.items()
        }

    def _new(self, node_type: NodeType, frontier: Frontier) -> Frontier:
        return replace(frontier, nodes=self.ids.new_nodes(node_type, frontier.nodes))


@dataclass(frozen=True)
class TableAsWhole(FeatureStoreBase):
    """A feature store of the old ids over one of the new."""

    ids: OldIds
    table: FeatureStore

    @property
    def specs(self) -> Specs:
        return self.table.specs

    def gather(self, wanted: Wanted) -> Gathered:
        return self.table.gather({t: replace(rows, ids=self._new(t, rows.ids)) for t, rows in wanted.items()})

    def _new(self, type_: NodeType | EdgeType, ids: Tensor) -> Tensor:
        if type_ not in self.ids.parts.schema.columns:
            return ids
        return self.ids.new_nodes(type_, ids) if isinstance(type_, str) else self.ids.new_edges(type_, ids)


def _originals(part: GraphFolder, node_type: NodeType) -> Tensor:
    ids = part.original_ids(node_type)
    assert ids is not None
    return ids


def _places(of: Tensor, ids: Tensor) -> Tensor:
    """Where each id stands."""
    order = of.argsort()
    return order[torch.searchsorted(of[order], ids)]


def _known(new: Tensor, ids: Tensor) -> Tensor:
    is_known = (ids >= 0) & (ids < new.numel())
    return torch.where(is_known, new[torch.where(is_known, ids, 0)], ids) if new.numel() else ids


def assert_same(ids: OldIds, found: Sample, wanted: Sample) -> None:
    """A sample of parts is, by old ids, that of the whole graph, bit for bit."""
    for node_type, nodes in wanted.nodes.items():
        assert torch.equal(ids.nodes[node_type][found.nodes[node_type]], nodes)
        if wanted.trees is not None:
            assert torch.equal(found.trees[node_type], wanted.trees[node_type])
    assert found.seed_index.keys() == wanted.seed_index.keys()
    assert all(torch.equal(found.seed_index[t], index) for t, index in wanted.seed_index.items())
    shown = [(found.blocks, wanted.blocks)]
    if wanted.subgraph is not None:
        shown.append(((found.subgraph,), (wanted.subgraph,)))
    for ours, theirs in (pair for both in shown for pair in zip(*both, strict=True)):
        assert list(ours.adjacencies) == list(theirs.adjacencies)
        for edge_type, adjacency in theirs.adjacencies.items():
            _assert_same_edges(ids.edges[edge_type], ours.adjacencies[edge_type], adjacency)


def _assert_same_edges(old: Tensor, ours: Adjacency, theirs: Adjacency) -> None:
    assert torch.equal(ours.indptr, theirs.indptr)
    assert torch.equal(ours.indices, theirs.indices)
    assert ours.num_src == theirs.num_src
    assert theirs.edge_ids is not None
    assert torch.equal(old[ours.edge_ids], theirs.edge_ids)
    assert (ours.weight is None) == (theirs.weight is None)
    assert theirs.weight is None or torch.equal(ours.weight, theirs.weight)
    assert (ours.elapsed is None) == (theirs.elapsed is None)
    assert theirs.elapsed is None or torch.equal(ours.elapsed, theirs.elapsed)
    assert ours.columns.keys() == theirs.columns.keys()
    assert all(torch.equal(ours.columns[name], column) for name, column in theirs.columns.items())
