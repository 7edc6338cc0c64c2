"""Links of a split of a graph in parts: each is on the server of its destination."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from khop.distributed.partitioned_links import ENDS, PartitionedLinks
from khop.draw import Positives
from khop.features.store import FeatureStoreBase, Gathered, Rows, Wanted
from khop.kernels.owners import ByOwner
from khop.sampling.link_digest import links_digest
from khop.sampling.time_split import PARTS
from khop.schema import ColumnSpec, EdgeType, Specs, Type
from khop.servers.frame import Frame, Tensors
from khop.servers.parts.exchange import Query
from khop.servers.parts.graph import SharedGraph
from khop.servers.parts.split import SharedSplit
from khop.servers.parts.wire import LINK_ROWS

_AT_ONCE = 1 << 16  # links whose digest is computed at a time


@dataclass(frozen=True, eq=False)
class LinkPlaces:
    """Numbers of the links of one edge type: by the original ids of their destinations, then by row."""

    nodes: Tensor  # int64 (nodes): destinations by original id
    ends: Tensor  # int64 (nodes): number after the last link of each of these
    before: Tensor  # int64 (nodes): links of nodes with a smaller id, by id

    @classmethod
    def of(cls, counts: Tensor, originals: Tensor | None) -> LinkPlaces:
        """Return the places of links; `counts` are the numbers of links of each destination."""
        nodes = torch.arange(counts.numel()) if originals is None else originals.argsort()
        return cls(nodes, counts[nodes].cumsum(0), counts.cumsum(0) - counts)

    @property
    def count(self) -> int:
        """Number of links."""
        return int(self.ends[-1]) if self.ends.numel() else 0

    def found(self, numbers: Tensor) -> tuple[Tensor, Tensor]:
        """Return the destinations of links, and the numbers that the links would have by ids alone."""
        rank = torch.searchsorted(self.ends, numbers, right=True)
        nodes = self.nodes[rank]
        starts = self.ends[rank - 1].masked_fill(rank == 0, 0)
        return nodes, self.before[nodes] + numbers - starts


class SharedLinkTable(FeatureStoreBase):
    """The links of a part of a split as columns by link number: ends, labels, times and negatives.

    Negatives are drawn when they are asked for, from the graph `drawn`: a draw depends on the number of its
    link alone.
    """

    def __init__(self, split: SharedSplit, name: str, drawn: SharedGraph) -> None:
        self._split, self._name, self._drawn = split, name, drawn
        facts = split.arguments.columns
        self._facts = facts if PARTS.index(name) else facts.of_training
        originals = split.graph.nodes.originals
        self._places = {
            t: LinkPlaces.of(split.ask_link_counts(name, t), originals.get(t[2]))
            for t in split.arguments.edge_types
        }

    @property
    def specs(self) -> Specs:
        """Dtype and shape of every column, by edge type."""
        return {t: self._specs(t) for t in self._places}

    @property
    def counts(self) -> Mapping[EdgeType, int]:
        """Number of links by edge type."""
        return {t: places.count for t, places in self._places.items()}

    def local_rows(self, type_: Type) -> range:
        """Return no rows: those of this part have numbers among the others."""
        return range(0)

    def gather(self, wanted: Wanted) -> Gathered:
        """Return the columns of links by their numbers, from the servers that have them."""
        found: Gathered = {}
        for type_, rows in wanted.items():
            assert isinstance(type_, tuple)
            columns = self._columns(type_, rows.ids)
            found[type_] = {name: columns[name][: rows.limits.get(name)] for name in rows.columns}
        return found

    def _columns(self, edge_type: EdgeType, numbers: Tensor) -> dict[str, Tensor]:
        graph, places = self._split.graph, self._places[edge_type]
        bounds = graph.bounds[edge_type[2]]
        nodes, rows = places.found(numbers)
        owners = ByOwner.of(nodes, bounds)
        firsts = [int(places.before[first]) if first < end else 0 for first, end in pairwise(bounds)]
        shares = [of_part - first for of_part, first in zip(owners.split(rows), firsts, strict=True)]
        queries = {}
        for part in graph.exchange.others:
            if shares[part].numel():
                tensors = Tensors()
                fields = {**self._split.fields(self._name, edge_type), "rows": tensors(shares[part])}
                queries[part] = Query(fields, tensors)
        specs = {name: spec for name, spec in self._specs(edge_type).items() if name != "negatives"}

        def read(part: int, frame: Frame) -> dict[str, Tensor]:
            return {name: _checked(frame, name, spec, shares[part].numel()) for name, spec in specs.items()}

        own = graph.exchange.part
        mine, found = graph.exchange.ask(
            LINK_ROWS, queries, read, lambda: self._split.link_rows(self._name, edge_type, shares[own])
        )
        nothing = {name: fact[:0] for name, fact in mine.items()}
        of_parts = [mine if part == own else found.get(part, nothing) for part in range(len(shares))]
        columns = {name: owners.joined([of_part[name] for of_part in of_parts]) for name in specs}
        if self._facts.negatives:
            columns["negatives"] = self._negatives(edge_type, numbers, columns)
        return columns

    def _negatives(self, edge_type: EdgeType, numbers: Tensor, columns: Mapping[str, Tensor]) -> Tensor:
        facts, key = self._facts, self._split.arguments.key.plus(PARTS.index(self._name))
        sources = columns[ENDS][:, 0].contiguous()
        of_relations = (columns.get("relations"), facts.relation)
        positives = Positives(sources, numbers, columns.get("times"), facts.time, *of_relations)
        return self._drawn.sample_negatives(edge_type, facts.eval_negatives, positives, key)

    def _specs(self, edge_type: EdgeType) -> dict[str, ColumnSpec]:
        facts, found = self._facts, {ENDS: ColumnSpec("int64", (2,))}
        if facts.label is not None:
            spec = self._split.graph.schema.column(edge_type, facts.label)
            found["labels"] = ColumnSpec(spec.dtype, spec.shape)
        if facts.time is not None:
            found["times"] = ColumnSpec("int64", ())
        if facts.relation is not None:
            found["relations"] = ColumnSpec("int64", ())
        if facts.negatives:
            found["negatives"] = ColumnSpec("int64", (facts.negatives,))
        return found


def _checked(frame: Frame, name: str, spec: ColumnSpec, count: int) -> Tensor:
    found = frame.tensor(frame.document[name])
    if str(found.dtype) != f"torch.{spec.dtype}" or found.shape != (count, *spec.shape):
        raise ValueError(f"{name} of links: are {found.dtype} {tuple(found.shape)}, asked are {count} links")
    return found


class _Digests(Mapping[EdgeType, int]):
    """The digests of links by edge type, each computed when it is asked for: that reads all links."""

    def __init__(self, table: SharedLinkTable) -> None:
        self._table = table

    def __getitem__(self, edge_type: EdgeType) -> int:
        count, total = self._table.counts[edge_type], 0
        columns = tuple(self._table.specs[edge_type])
        for first in range(0, count, _AT_ONCE):
            numbers = torch.arange(first, min(count, first + _AT_ONCE))
            found = self._table.gather({edge_type: Rows(numbers, columns)})[edge_type]
            total += links_digest(first, [found[name] for name in columns])
        return total & (1 << 64) - 1

    def __iter__(self) -> Iterator[EdgeType]:
        return iter(self._table.counts)

    def __len__(self) -> int:
        return len(self._table.counts)


def shared_links(split: SharedSplit, name: str, drawn: SharedGraph) -> PartitionedLinks:
    """Return the links of a part of a split, which stay on the servers of their destinations.

    Their negatives are drawn from the graph `drawn`.
    """
    table = SharedLinkTable(split, name, drawn)
    return PartitionedLinks(table.counts, table, _Digests(table))
