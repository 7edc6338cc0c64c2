"""Edges followed forward, backward or in both directions, as torch_geometric's sampling directions."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch_geometric.sampler import HeteroSamplerOutput

from khop.batch import Sample
from khop.graph.csc_graph import CscGraph, column_specs
from khop.pyg.outputs import edge_pairs, original_ids, sampler_output, with_row_per_seed
from khop.pyg.source import Attributes, Source
from khop.pyg.typed_data import DATA_KINDS, owner_of, storages
from khop.schema import EdgeType, NodeType, Schema


class Direction(StrEnum):
    """The direction in which a hop follows edges, by the end at which it starts."""

    FORWARD = "forward"  # from the destination: messages reach the seeds
    BACKWARD = "backward"  # from the source: messages come from the seeds
    BOTH = "both"

    @classmethod
    def _missing_(cls, value: object) -> NoReturn:
        raise ValueError(f"sample_direction {value!r}: must be 'forward' or 'backward'")


@dataclass(frozen=True, eq=False)
class Directed:
    """Edges to sample, some of them reversed, and the mapping back to the data's edges."""

    source: Source  # with the sampled edge types
    data_types: Mapping[EdgeType, EdgeType]  # sampled type -> type in the data
    turned: frozenset[EdgeType]  # the sampled types that are reversed
    direction: Direction

    @classmethod
    def of(cls, data: Any, attributes: Attributes, direction: Direction) -> Directed:
        """Make the edges to sample; ValueError for data that torch_geometric's samplers do not take."""
        if direction is Direction.FORWARD:
            source = Source.of(data, attributes)
            return cls(source, {t: t for t in source.graph.schema.edge_types}, frozenset(), direction)
        back = Source.of(_turned(data), attributes)
        data_types = {t: t[::-1] if back.is_typed else t for t in back.graph.schema.edge_types}
        if direction is Direction.BACKWARD:
            return cls(back, data_types, frozenset(data_types), direction)
        forward = Source.of(data, attributes)
        renamed = {t: (t[0], f"{t[1]} (turned)", t[2]) for t in data_types}
        types = {t: t for t in forward.graph.schema.edge_types}
        both = _joined(forward, back, renamed)
        back_types = {renamed[t]: data_type for t, data_type in data_types.items()}
        return cls(both, {**types, **back_types}, frozenset(back_types), direction)

    @property
    def permutations(self) -> Mapping[EdgeType, Tensor | None]:
        """Maps from the ids of an output's edges to the data's edges, by the data's types."""
        if self.direction is Direction.BOTH:
            return dict.fromkeys(self.data_types.values())  # outputs already have the data's ids
        return {self.data_types[t]: order for t, order in self.source.permutations.items()}

    def sampled_pairs(self, pairs: Mapping[EdgeType, Tensor]) -> dict[EdgeType, Tensor]:
        """Convert ends (2, pairs) by the data's types to ends by sampled types, in the direction of these."""
        return {
            sampled: pairs[t].flip(0) if sampled in self.turned else pairs[t]
            for sampled, t in self.data_types.items()
            if t in pairs
        }

    def output(self, sample: Sample) -> HeteroSamplerOutput:
        """Convert a sample to an output with the data's edges."""
        if self.direction is Direction.BOTH:
            return self.merged(sample)
        output = sampler_output(sample, self.source.graph.schema)
        if self.direction is Direction.BACKWARD:
            output.row, output.col = output.col, output.row
            for name in ("row", "col", "edge", "num_sampled_edges"):
                by_type = getattr(output, name)
                if by_type is not None:
                    setattr(output, name, {self.data_types[t]: value for t, value in by_type.items()})
        return output

    def merged(self, sample: Sample) -> HeteroSamplerOutput:
        """Merge a sample of both directions: every edge once, hop by hop, with the data's edge id."""
        sample = with_row_per_seed(sample)
        assert sample.subgraph is not None
        per_hop = sample.subgraph.edges_per_hop
        pieces: dict[EdgeType, list[_Drawn]] = {t: [] for t in self.data_types.values()}
        for sampled, t in self.data_types.items():
            adjacency = sample.subgraph.adjacencies.get(sampled)
            if adjacency is None:
                continue
            pairs = edge_pairs(adjacency)
            counts = (pairs.shape[1],) if per_hop is None else per_hop.get(sampled, ())
            hops = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts, dtype=torch.int64))
            ids = original_ids(adjacency.edge_ids, self.source.permutations[sampled])
            trees = None if sample.trees is None else sample.trees[sampled[2]][pairs[1]]
            pieces[t].append(_Drawn(pairs.flip(0) if sampled in self.turned else pairs, ids, hops, trees))
        num_hops = 0 if per_hop is None else max((len(counts) for counts in per_hop.values()), default=0)
        edges = {t: _once(drawn) for t, drawn in pieces.items()}
        nodes_per_hop = sample.subgraph.nodes_per_hop
        return HeteroSamplerOutput(
            node=dict(sample.nodes),
            row={t: of_type.pairs[0] for t, of_type in edges.items()},
            col={t: of_type.pairs[1] for t, of_type in edges.items()},
            edge={t: of_type.ids for t, of_type in edges.items()},
            batch=None if sample.trees is None else dict(sample.trees),
            num_sampled_nodes=None if per_hop is None else {t: [*n] for t, n in nodes_per_hop.items()},
            num_sampled_edges=None
            if per_hop is None
            else {t: torch.bincount(e.hops, minlength=num_hops).tolist() for t, e in edges.items()},
        )


@dataclass(frozen=True)
class _Drawn:
    """Drawn edges of one of the data's types, in the data's direction."""

    pairs: Tensor  # int64 (2, edges), local ids
    ids: Tensor  # int64 (edges), the data's edge ids
    hops: Tensor  # int64 (edges)
    trees: Tensor | None  # int64 (edges), for disjoint samples


def _once(drawn: list[_Drawn]) -> _Drawn:
    """Order the edges of both directions by hop, forward ones first; keep a repeated edge of a tree once."""
    nothing = torch.empty(0, dtype=torch.int64)
    if not drawn:
        return _Drawn(nothing.view(2, 0), nothing, nothing, None)
    pairs = torch.cat([piece.pairs for piece in drawn], dim=1)
    ids, hops = (torch.cat([getattr(piece, name) for piece in drawn]) for name in ("ids", "hops"))
    trees = torch.zeros_like(ids)
    if drawn[0].trees is not None:
        trees = torch.cat([piece.trees for piece in drawn if piece.trees is not None])
    order = hops.argsort(stable=True)
    keys = torch.stack([trees, ids], dim=1)[order]
    unique, inverse = torch.unique(keys, dim=0, return_inverse=True)
    first = torch.full((unique.shape[0],), order.numel())
    first.scatter_reduce_(0, inverse, torch.arange(order.numel()), "amin")
    kept = order[first.sort().values]
    return _Drawn(pairs[:, kept], ids[kept], hops[kept], None)


def _turned(data: Any) -> Any:
    """Return the same data with every edge reversed; edge types swap their ends."""
    if not isinstance(data, DATA_KINDS):
        raise ValueError(
            f"edges are turned around of a Data or HeteroData only, not of a {type(data).__name__}"
        )
    turned = copy.copy(data)
    for owner, storage in storages(data):
        if "adj_t" in storage:
            raise ValueError(
                "adj_t: edges are sampled against their direction from edge_index; omit ToSparseTensor"
            )
        if isinstance(owner, tuple):
            del turned[owner]
        else:  # counted before the edges turn: the count may be inferred from them
            owner_of(turned, owner).num_nodes = storage.num_nodes
    for owner, storage in storages(data):
        target = owner_of(turned, owner[::-1] if isinstance(owner, tuple) else owner)
        for name, value in storage.items():
            target[name] = value.flip(0) if name == "edge_index" else value
    return turned


def _joined(forward: Source, back: Source, renamed: Mapping[EdgeType, EdgeType]) -> Source:
    """Join the edge types of both graphs into one graph. `renamed` gives the new names of `back`'s types."""
    graph, other = forward.graph, back.graph
    columns: dict[NodeType | EdgeType, Mapping[str, Tensor]] = dict(graph.columns)
    columns |= {renamed[t]: other.columns.get(t, {}) for t in renamed}
    edges = {**graph.edges, **{renamed[t]: other.edges[t] for t in renamed}}
    schema = Schema(graph.schema.node_types, tuple(edges), columns=column_specs(columns))
    orders = {**forward.permutations, **{renamed[t]: back.permutations[t] for t in renamed}}
    joined = CscGraph(schema, graph.counts, edges, columns=columns)
    return Source(joined, orders, forward.is_typed, forward.node_times)
