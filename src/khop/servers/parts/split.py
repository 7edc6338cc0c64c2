"""A split of links over a graph in parts: each server splits the edges of its part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from khop.draw import DrawKey, Purpose
from khop.sampling.link_split import (
    Counted,
    EdgeRange,
    EdgeSplit,
    LinkColumns,
    Part,
    Shares,
    link_numbers,
    split_edges,
)
from khop.schema import EdgeType, NodeType, Schema
from khop.servers.frame import Frame, Tensors
from khop.servers.json_fields import Document, Plain
from khop.servers.parts.exchange import Query
from khop.servers.parts.graph import SharedGraph
from khop.servers.parts.kept import KeptValues
from khop.servers.parts.wire import COUNTS, LINK_COUNTS, edge_type_of

PARTS = ("train", "val", "test")
_NUMBERS = 2  # random numbers of links that are kept: 8 bytes for each link of a type


@dataclass(frozen=True)
class SplitArguments:
    """The arguments of `khop.split_links`."""

    edge_types: tuple[EdgeType, ...]
    shares: Shares
    facts: LinkColumns
    key: DrawKey
    plain: Mapping[str, Plain]  # as they travel

    @classmethod
    def read(cls, given: Document, schema: Schema) -> SplitArguments:
        """Read the arguments of a split of a graph; ValueError names what is wrong."""
        label, time = given.given("label"), given.given("time")
        facts = LinkColumns(
            given["negatives"].whole(),
            None if label is None else label.text(),
            None if time is None else time.text(),
        )
        edge_types = tuple(edge_type_of(each.type_(), schema) for each in given["edge_types"].each())
        for edge_type in edge_types:
            for name in (facts.label, facts.time):
                if name is not None:
                    schema.column(edge_type, name)
        shares = Shares(share_of(given["val"]), share_of(given["test"]), given["disjoint_share"].real())
        key = DrawKey.of(given["seed"].whole(), Purpose.SPLIT)
        return cls(edge_types, shares, facts, key, {name: given[name].value for name in given.names()})


def share_of(given: Document) -> float:
    """Return a share, or a count of links as the whole number that it is."""
    return given.whole() if type(given.value) is int else given.real()


@dataclass(frozen=True)
class SharedEdges:
    """The edges of this server's part, and sums over all parts (a DistributedEdges)."""

    graph: SharedGraph
    arguments: SplitArguments

    @property
    def schema(self) -> Schema:
        """The types of the graph."""
        return self.graph.schema

    @property
    def original_ids(self) -> Mapping[NodeType, Tensor]:
        """Ids before partitioning, int64 (nodes of all parts), by node type."""
        return self.graph.held.nodes.originals

    def edge_ranges(self, edge_type: EdgeType) -> Sequence[EdgeRange]:
        """Return the edges of this part."""
        return [EdgeRange(csc, first) for csc, first in self.graph.held.rows(edge_type)]

    def total(self, counts: Tensor, of: Counted) -> Tensor:
        """Return the sum of the counts over all parts, from their servers."""
        fields = {
            "view": list(self.graph.view),
            "split": dict(self.arguments.plain),
            "type": list(of.edge_type),
            "shift": of.shift,
            "prefix": of.prefix,
            "above": of.above,
        }

        def read(part: int, frame: Frame) -> Tensor:
            found = frame.tensor(frame.document["counts"])
            if found.dtype != torch.int64 or found.shape != counts.shape:
                raise ValueError(f"counts: are {found.dtype} {tuple(found.shape)}, not {tuple(counts.shape)}")
            return found

        exchange = self.graph.exchange
        _, found = exchange.ask(COUNTS, dict.fromkeys(exchange.others, Query(fields)), read, lambda: None)
        return counts + sum(found.values())


class SharedSplit:
    """A split of links of a graph in parts. Threads may share it.

    Counts of links by their random numbers need the edges of this part alone. All else needs the bounds of
    the parts of the split, for which the other servers are asked once.
    """

    def __init__(self, graph: SharedGraph, arguments: SplitArguments) -> None:
        self.graph, self.arguments = graph, arguments
        self._edges = SharedEdges(graph, arguments)
        self._numbers: KeptValues[Tensor] = KeptValues(_NUMBERS)
        self._made: KeptValues[EdgeSplit] = KeptValues(1)

    def counts(self, counted: Counted) -> Tensor:
        """Return the counts of the links of this part."""
        edge_type, key = counted.edge_type, self.arguments.key
        numbers = self._numbers.of(edge_type, lambda: link_numbers(self._edges, edge_type, key))
        return counted.counts(numbers)

    def part(self, name: str) -> Part:
        """Return a part of the split, for the edges held here; ValueError if there is none of this name."""
        if name not in PARTS:
            raise ValueError(f"part {name!r} of a split of links: must be one of {list(PARTS)}")
        arguments = self.arguments
        made = self._made.of(
            "split", lambda: split_edges(self._edges, arguments.edge_types, arguments.shares, arguments.key)
        )
        return {"train": made.train, "val": made.val, "test": made.test}[name]

    def link_counts(self, name: str, edge_type: EdgeType) -> Tensor:
        """Return the number of links to each destination held here, int64 (nodes of this part)."""
        first, *_, end = self.graph.held.folder.bounds(edge_type[2])
        destinations = self._ends(edge_type, self._positions(name, edge_type))[:, 1]
        return torch.bincount(destinations - first, minlength=end - first)

    def link_rows(self, name: str, edge_type: EdgeType, rows: Tensor) -> dict[str, Tensor]:
        """Return the ends, labels and times of links held here, by their number among them."""
        at = self._positions(name, edge_type)
        if rows.dtype != torch.int64 or rows.dim() != 1:
            raise ValueError(f"links: are {rows.dtype} {tuple(rows.shape)}, must be int64 (n)")
        if rows.numel() and not 0 <= int(rows.min()) <= int(rows.max()) < at.numel():
            raise ValueError(f"links {int(rows.min())} to {int(rows.max())}: there are {at.numel()} here")
        at, facts, held = at[rows], self.arguments.facts, self.graph.held
        found = {"ends": self._ends(edge_type, at)}
        if facts.label is not None:
            found["labels"] = held.column(edge_type, facts.label, [at])[0]
        if facts.time is not None:
            found["times"] = held.column(edge_type, facts.time, [at])[0].long()
        return found

    def ask_link_counts(self, name: str, edge_type: EdgeType) -> Tensor:
        """Return the number of links to each destination of all parts, int64 (nodes)."""
        bounds = self.graph.bounds[edge_type[2]]
        fields = {**self.fields(name, edge_type)}

        def read(part: int, frame: Frame) -> Tensor:
            found = frame.tensor(frame.document["counts"])
            if found.dtype != torch.int64 or found.shape != (bounds[part + 1] - bounds[part],):
                raise ValueError(f"counts: are {found.dtype} {tuple(found.shape)}")
            return found

        exchange = self.graph.exchange
        own, found = exchange.ask(
            LINK_COUNTS,
            dict.fromkeys(exchange.others, Query(fields)),
            read,
            lambda: self.link_counts(name, edge_type),
        )
        found[exchange.part] = own
        return torch.cat([found[part] for part in sorted(found)])

    def fields(self, name: str, edge_type: EdgeType) -> dict[str, Plain]:
        """Return the fields of requests about links of a part of the split."""
        return {
            "view": list(self.graph.view),
            "split": dict(self.arguments.plain),
            "part_of_split": name,
            "type": list(edge_type),
        }

    def _positions(self, name: str, edge_type: EdgeType) -> Tensor:
        links = self.part(name).links
        if edge_type not in links:
            raise ValueError(f"links of {edge_type}: the split has those of {list(links)}")
        (at,) = links[edge_type]
        return at

    def _ends(self, edge_type: EdgeType, positions: Tensor) -> Tensor:
        """Return int64 (n, 2), sources first."""
        (edges,) = self._edges.edge_ranges(edge_type)
        return edges.ends(positions).T


def counts_answer(
    split: SharedSplit, given: Document, edge_type: EdgeType
) -> tuple[dict[str, Plain], Tensors]:
    """Return the answer to a request of `SharedEdges.total`."""
    shift = given["shift"].whole(0, 64)
    if shift % 16:
        raise ValueError(f"{given.where}.shift: is {shift}, and must be a multiple of 16")
    counted = Counted(edge_type, shift, given["prefix"].whole(), given["above"].whole(-1))
    tensors = Tensors()
    return {"counts": tensors(split.counts(counted))}, tensors
