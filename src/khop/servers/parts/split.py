"""A split of links over a graph in parts: each server splits the edges of its part."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from khop.distributed.held_edges import HeldEdges
from khop.graph.import_record import TimeCutOffs
from khop.partition.parts_links import refuse_relations
from khop.sampling.link_split import Counted, EdgeSplit, Part, Shares, link_numbers, split_edges
from khop.sampling.time_split import PARTS, check_parts, split_by_column, split_by_time
from khop.schema import EdgeType
from khop.servers.frame import Frame, Tensors
from khop.servers.json_fields import Document, Plain
from khop.servers.kept import KeptValues
from khop.servers.parts.exchange import Query
from khop.servers.parts.graph import SharedGraph
from khop.servers.parts.wire import COUNTS, LINK_COUNTS
from khop.servers.split_arguments import ByColumn, SplitArguments

_NUMBERS = 2  # random numbers of links that are kept: 8 bytes for each link of a type


def shared_edges(graph: SharedGraph, arguments: SplitArguments) -> HeldEdges:
    """Return the edges of this server's part, with sums over all parts from their servers."""

    def total(counts: Tensor, of: Counted) -> Tensor:
        fields = {
            "view": list(graph.view),
            "split": arguments.plain,
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

        exchange = graph.exchange
        _, found = exchange.ask(COUNTS, dict.fromkeys(exchange.others, Query(fields)), read, lambda: None)
        return counts + sum(found.values())

    return HeldEdges(graph.held, total)


class SharedSplit:
    """A split of links of a graph in parts. Threads may share it.

    A split by time or by a column needs the edges of this part alone, and so do counts of links by their
    random numbers. The rest of a random split needs the bounds of its parts, for which the other servers are
    asked once.
    """

    def __init__(self, graph: SharedGraph, arguments: SplitArguments) -> None:
        self.graph, self.arguments = graph, arguments
        self._edges = shared_edges(graph, arguments)
        self._numbers: KeptValues[Tensor] = KeptValues(_NUMBERS)
        self._made: KeptValues[EdgeSplit] = KeptValues(1)
        self._totals: KeptValues[dict[str, int]] = KeptValues(len(arguments.edge_types))  # links by part

    def counts(self, counted: Counted) -> Tensor:
        """Return the counts of the links of this part."""
        edge_type, key = counted.edge_type, self.arguments.key
        numbers = self._numbers.of(edge_type, lambda: link_numbers(self._edges, edge_type, key))
        return counted.counts(numbers)

    def part(self, name: str) -> Part:
        """Return a part of the split, for the edges held here; ValueError if there is none of this name."""
        if name not in PARTS:
            raise ValueError(f"part {name!r} of a split of links: must be one of {list(PARTS)}")
        made = self._made.of("split", lambda: _split(self._edges, self.arguments))
        return {"train": made.train, "val": made.val, "test": made.test}[name]

    def check(self) -> None:
        """Raise ValueError if a part of a split by time or by a column has no links.

        Negatives by relation are refused, too.
        """
        columns = self.arguments.columns
        if columns.relation is not None and columns.negatives:
            refuse_relations(self.arguments.edge_types[0], columns.relation)
        if isinstance(self.arguments.method, Shares):
            return
        for edge_type in self.arguments.edge_types:
            check_parts(edge_type, self._totals.of(edge_type, partial(self._total_counts, edge_type)))

    def _total_counts(self, edge_type: EdgeType) -> dict[str, int]:
        return {name: int(self.ask_link_counts(name, edge_type).sum()) for name in PARTS}

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
        at, facts, held = at[rows], self.arguments.columns, self.graph.held
        found = {"ends": self._ends(edge_type, at)}
        if facts.label is not None:
            found["labels"] = held.column(edge_type, facts.label, [at])[0]
        if facts.time is not None:
            found["times"] = held.column(edge_type, facts.time, [at])[0].long()
        if facts.relation is not None:
            found["relations"] = held.column(edge_type, facts.relation, [at])[0].long()
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
            "split": self.arguments.plain,
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


def _split(edges: HeldEdges, arguments: SplitArguments) -> EdgeSplit:
    match arguments.method:
        case Shares():
            return split_edges(edges, arguments.edge_types, arguments.method, arguments.key)
        case TimeCutOffs():
            return split_by_time(edges, arguments.edge_types, arguments.method)
        case ByColumn():
            return split_by_column(edges, arguments.edge_types)


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
