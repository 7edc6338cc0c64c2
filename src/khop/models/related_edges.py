"""The edges into one node type with the relation of each edge: its edge type, or the value of a column."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
import torch.nn.functional as F
from torch import Tensor

from khop.batch import Adjacency, Block
from khop.kernels.choice import Engine, engine
from khop.kernels.csc import Csc
from khop.kernels.segment_mixture import merge_edges
from khop.schema import EdgeType, NodeType


@dataclass(frozen=True)
class RelationColumn:
    """The edge column of relations, and the number of relations of each edge type that has it."""

    column: str
    counts: Mapping[EdgeType, int]

    def __post_init__(self) -> None:
        for edge_type, count in self.counts.items():
            if count < 1:
                raise ValueError(f"relations of {edge_type}: {count}, must be at least 1")


@dataclass(frozen=True)
class RelatedEdges:
    """Edges by destination, within a row by relation.

    `scales` are the coefficients of a sum: 1 over the number of edges of a row by the same relation, or the
    weights by the sampler's rule.
    """

    indptr: Tensor  # int64 (rows + 1)
    indices: Tensor  # int32 (edges), rows of the joined sources
    relations: Tensor  # int64 (edges), row of the layer's table
    scales: Tensor  # float64, or float32 by a rule (edges)

    @classmethod
    def of_column(
        cls, edge_type: EdgeType, adjacency: Adjacency, given: RelationColumn, first: int
    ) -> RelatedEdges:
        """Return the edges of one type by their column; relation 0 has row `first` of the table."""
        if given.column not in adjacency.columns:
            raise ValueError(
                f"column {given.column!r} of {edge_type}: the model reads it, the batch does not have it; "
                f"give the loader columns={{{edge_type!r}: [{given.column!r}], ...}}"
            )
        relations = adjacency.columns[given.column].long()
        count = given.counts[edge_type]
        if relations.device.type == "cpu" and relations.numel():
            low, high = (int(end) for end in relations.aminmax())
            if low < 0 or high >= count:
                raise ValueError(
                    f"column {given.column!r} of {edge_type}: relations from {low} to {high}, the model has "
                    f"{count}; make it with more"
                )
        rows = _rows(adjacency.indptr, adjacency.indices.numel())
        keys, order = (rows * count + relations).sort(stable=True)
        weights = None if adjacency.weight is None else adjacency.weight[order]
        return cls._scaled(
            adjacency.indptr, adjacency.indices[order], relations[order] + first, keys, weights
        )

    @classmethod
    def of_types(
        cls,
        adjacencies: Sequence[Adjacency],
        tables: Sequence[int],
        firsts: Sequence[int],
        shape: tuple[int, int],
    ) -> RelatedEdges:
        """Return the edges of several types, all with weights or none.

        Type i has row `tables[i]` of the table, and `firsts[i]` is the first row of its sources. `shape` are
        the numbers of rows and of joined sources.
        """
        edges = [Csc(each.indptr, each.indices) for each in adjacencies]
        joined, numbers = merge_edges(edges, firsts, *shape)
        relations = torch.tensor(tables, dtype=torch.int64)[numbers.long()]
        keys = _rows(joined.indptr, joined.num_edges) * len(tables) + numbers
        weights = _joined_weights(adjacencies, shape[0])
        return cls._scaled(joined.indptr, joined.indices, relations, keys, weights)

    @classmethod
    def _scaled(
        cls, indptr: Tensor, indices: Tensor, relations: Tensor, keys: Tensor, weights: Tensor | None
    ) -> RelatedEdges:
        """Return the edges with their scales; equal `keys` stand next to each other."""
        if weights is None:
            numbers = _first_of_runs(keys).cumsum(0) - 1
            counts = torch.zeros_like(keys).scatter_add_(0, numbers, torch.ones_like(keys))
            weights = (1 / counts.double())[numbers]
        return cls(indptr, indices, relations, weights)

    def pairs(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return pairs by row, edges by pair, and the relation of each pair of a row and a relation.

        The host waits for a device once, for the number of pairs.
        """
        count = self.indices.numel()
        changes = _first_of_runs(self.relations) | _first_of_runs(_rows(self.indptr, count))
        before = F.pad(changes.cumsum(0), (1, 0))
        firsts = changes.nonzero().squeeze(1)
        return before[self.indptr], F.pad(firsts, (0, 1), value=count), self.relations[firsts]


@dataclass(frozen=True)
class RelationSlots:
    """Rows of a layer's table of relations: one per edge type, or one per value of the relation column."""

    first: Mapping[EdgeType, int]
    given: RelationColumn | None
    counts: Mapping[EdgeType, int]

    @classmethod
    def of(cls, edge_types: Sequence[EdgeType], given: RelationColumn | None) -> RelationSlots:
        """Return the rows in the order of the edge types."""
        counts = {t: 1 if given is None else given.counts.get(t, 1) for t in edge_types}
        firsts = accumulate(counts.values(), initial=0)
        return cls(dict(zip(counts, firsts, strict=False)), given, counts)

    @property
    def count(self) -> int:
        """Number of rows of the table."""
        return sum(self.counts.values())

    def has_column(self, edge_type: EdgeType) -> bool:
        """Return True if the relations of an edge type are in its column."""
        return self.given is not None and edge_type in self.given.counts

    def groups(
        self, node_type: NodeType, h: Mapping[NodeType, Tensor], block: Block
    ) -> list[tuple[Tensor, RelatedEdges]]:
        """Return the edges into a node type with the rows of their sources, in a few groups.

        On the CPU, edge types without a column are one group, or two if some of them have weights.
        """
        there = {t: block.adjacencies[t] for t in self.first if t[2] == node_type and t in block.adjacencies}
        alone = {t: a for t, a in there.items() if self.has_column(t)}
        others = {t: a for t, a in there.items() if t not in alone and a.indices.numel()}
        is_native = all(engine(a.indptr.device) is Engine.NATIVE for a in others.values())
        found = []
        for edge_type, adjacency in alone.items():
            assert self.given is not None
            edges = RelatedEdges.of_column(edge_type, adjacency, self.given, self.first[edge_type])
            found.append((h[edge_type[0]], edges))
        if is_native:
            weighed = {t: a for t, a in others.items() if a.weight is not None}
            averaged = {t: a for t, a in others.items() if a.weight is None}
            count, others = block.dst_counts[node_type], {}
            found += [self._merged(each, h, count) for each in (weighed, averaged) if each]
        for edge_type, adjacency in others.items():
            relations = torch.full_like(adjacency.indices, self.first[edge_type], dtype=torch.int64)
            keys = _rows(adjacency.indptr, adjacency.indices.numel())
            edges = RelatedEdges._scaled(
                adjacency.indptr, adjacency.indices, relations, keys, adjacency.weight
            )
            found.append((h[edge_type[0]], edges))
        return found

    def _merged(
        self, adjacencies: Mapping[EdgeType, Adjacency], h: Mapping[NodeType, Tensor], count: int
    ) -> tuple[Tensor, RelatedEdges]:
        sources = list(dict.fromkeys(t[0] for t in adjacencies))
        firsts, total = dict[NodeType, int](), 0
        for source in sources:
            firsts[source] = total
            total += h[source].shape[0]
        rows = h[sources[0]] if len(sources) == 1 else torch.cat([h[source] for source in sources])
        tables = [self.first[t] for t in adjacencies]
        given = list(adjacencies.values()), tables, [firsts[t[0]] for t in adjacencies]
        return rows, RelatedEdges.of_types(*given, (count, total))


def _joined_weights(adjacencies: Sequence[Adjacency], num_rows: int) -> Tensor | None:
    """Return the weights of joined edges, in the order of `merge_edges`."""
    weights = [each.weight for each in adjacencies if each.weight is not None]
    if not weights:
        return None
    every = torch.cat(weights)
    firsts = [0, *accumulate(each.numel() for each in weights)][:-1]
    places = [Csc(each.indptr, torch.arange(each.indices.numel())) for each in adjacencies]
    return every[merge_edges(places, firsts, num_rows, every.numel())[0].indices.long()]


def _first_of_runs(values: Tensor) -> Tensor:
    """Return bool (values): the first of each run of equal values."""
    is_first = torch.ones_like(values, dtype=torch.bool)
    is_first[1:] = values[1:] != values[:-1]
    return is_first


def _rows(indptr: Tensor, count: int) -> Tensor:
    """Return the row of each edge, int64 (edges)."""
    numbers = torch.arange(indptr.numel() - 1, device=indptr.device)
    return numbers.repeat_interleave(indptr.diff(), output_size=count)
