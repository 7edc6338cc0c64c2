"""Wire format of one hop between ranks: frontiers as requests, drawn neighbors as answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from zlib import crc32

import torch
from torch import Tensor

from khop.distributed.pieces import Reader, Writer, as_bytes, check_below, filled, narrowest
from khop.draw import DrawKey, Frontier, FrontierByType, Hop, Neighbors, NeighborsByType, mix64
from khop.graph.edge_draws import asked_types
from khop.schema import EdgeType, NodeType

MOST_PADDED = 128  # above this fanout answers state their size: padded rows would be mostly padding
IdRanges = Mapping[NodeType, tuple[int, int]]  # first id on a rank, and the id after its last


@dataclass(frozen=True)
class HopWire:
    """Format of the messages of one hop, the same on all ranks. Each piece is padded to 8 bytes."""

    fanouts: Mapping[EdgeType, int]  # edge types that are drawn, in order
    sources: Mapping[EdgeType, int]  # number of nodes of the source type
    edges: Mapping[EdgeType, int] | None  # number of edges; None: no edge ids are requested
    with_until: tuple[NodeType, ...]  # node types with time limits in their frontier
    with_tree: tuple[NodeType, ...]  # node types with disjoint trees in their frontier
    digest: int  # hash of everything that ranks have to agree on

    @classmethod
    def of(
        cls,
        frontier: FrontierByType,
        hop: Hop,
        key: DrawKey,
        nodes: Mapping[NodeType, int],
        edges: Mapping[EdgeType, int],
    ) -> HopWire:
        """Return the format of a hop over a graph; `nodes` and `edges` are its counts by type."""
        fanouts = {edge_type: hop.fanouts[edge_type] for edge_type in asked_types(frontier, hop)}
        with_until = tuple(t for t, of_type in frontier.items() if of_type.until is not None)
        with_tree = tuple(t for t, of_type in frontier.items() if of_type.tree is not None)
        words = repr((hop.number, list(fanouts.items()), hop.rule, hop.edge_ids, with_until, with_tree))
        return cls(
            fanouts,
            {edge_type: nodes[edge_type[0]] for edge_type in fanouts},
            {edge_type: edges[edge_type] for edge_type in fanouts} if hop.edge_ids else None,
            with_until,
            with_tree,
            mix64(key.value ^ crc32(words.encode())) >> 1,
        )

    @property
    def node_types(self) -> tuple[NodeType, ...]:
        """Frontier node types for which edges are drawn."""
        return tuple(dict.fromkeys(edge_type[2] for edge_type in self.fanouts))

    @property
    def is_bounded(self) -> bool:
        """True if the requesting rank can compute the size of an answer in bytes."""
        return all(0 <= fanout <= MOST_PADDED for fanout in self.fanouts.values())

    def question(self, frontier: FrontierByType, spans: IdRanges) -> Tensor:
        """Encode a frontier for a rank that stores the ids of `spans`. Returns uint8 (n)."""
        counts = [frontier[node_type].nodes.numel() for node_type in self.node_types]
        pieces = [torch.tensor([self.digest, *counts])]
        for node_type in self.node_types:
            of_type, (first, end) = frontier[node_type], spans[node_type]
            pieces.append((of_type.nodes - first).to(narrowest(end - first)))
            pieces += [limits for limits in (of_type.until, of_type.tree) if limits is not None]
        return as_bytes(pieces)

    def frontier(self, message: Tensor, spans: IdRanges) -> dict[NodeType, Frontier]:
        """Decode the frontier that another rank sent to this one, which stores the ids of `spans`.

        ValueError names the part of the message that is invalid.
        """
        types = self.node_types
        reader = Reader(message)
        digest, *counts = reader.take(torch.int64, 1 + len(types)).tolist()
        if digest != self.digest:
            raise ValueError("the question is about another hop, or drawn with another key")
        found = {}
        for node_type, count in zip(types, counts, strict=True):
            first, end = spans[node_type]
            ids = reader.take(narrowest(end - first), count)
            check_below(ids, end - first, f"frontier node of {node_type!r}")
            until = reader.take(torch.int64, count) if node_type in self.with_until else None
            tree = reader.take(torch.int64, count) if node_type in self.with_tree else None
            found[node_type] = Frontier(ids.long() + first, until, tree)
        reader.check_done()
        return found

    def size(self, counts: Mapping[NodeType, int]) -> int:
        """Return the bytes of an answer for these row counts; for bounded hops only."""
        return sum(
            filled(4 * rows) + self._edge_bytes(edge_type, rows * fanout)
            for edge_type, fanout, rows in self._rows(counts)
        )

    def size_of(self, drawn: NeighborsByType) -> int:
        """Return the bytes of the answer that `write` makes from these neighbors."""
        rows = {edge_type[2]: drawn[edge_type].offsets.numel() - 1 for edge_type in self.fanouts}
        if self.is_bounded:
            return self.size(rows)
        return sum(
            8 * rows[edge_type[2]] + self._edge_bytes(edge_type, drawn[edge_type].nodes.numel())
            for edge_type in self.fanouts
        )

    def write(self, drawn: NeighborsByType, message: Tensor) -> None:
        """Write drawn neighbors into a message; in a bounded hop every row is padded to its fanout."""
        writer = Writer(message)
        for edge_type, fanout in self.fanouts.items():
            found = drawn[edge_type]
            degrees, room = found.offsets.diff(), found.nodes.numel()
            if self.is_bounded:
                room = degrees.numel() * fanout
            writer.put(degrees, torch.int32 if self.is_bounded else torch.int64)
            writer.put(found.nodes, narrowest(self.sources[edge_type]), room)
            if self.edges is not None:
                assert found.edges is not None
                writer.put(found.edges, torch.int64, room)

    def neighbors(self, message: Tensor, counts: Mapping[NodeType, int]) -> dict[EdgeType, Neighbors]:
        """Decode the neighbors that a rank has drawn for these row counts.

        ValueError names the part of the message that is invalid.
        """
        reader, found = Reader(message), {}
        for edge_type, fanout, rows in self._rows(counts):
            degrees = reader.take(torch.int32 if self.is_bounded else torch.int64, rows).long()
            check_below(degrees, fanout + 1 if self.is_bounded else 1 << 60, f"degree of {edge_type}")
            offsets = torch.cat([degrees.new_zeros(1), degrees.cumsum(0)])
            total = int(offsets[-1])
            room = rows * fanout if self.is_bounded else total
            nodes = reader.take(narrowest(self.sources[edge_type]), room)[:total]
            check_below(nodes, self.sources[edge_type], f"source of {edge_type}")
            edges = None
            if self.edges is not None:
                edges = reader.take(torch.int64, room)[:total]
                check_below(edges, self.edges[edge_type], f"edge of {edge_type}")
            found[edge_type] = Neighbors(offsets, nodes, edges)
        reader.check_done()
        return found

    def _edge_bytes(self, edge_type: EdgeType, count: int) -> int:
        """Return the bytes of `count` edges: their sources, and their ids if edge ids are requested."""
        return filled(count * narrowest(self.sources[edge_type]).itemsize) + (
            0 if self.edges is None else 8 * count
        )

    def _rows(self, counts: Mapping[NodeType, int]) -> list[tuple[EdgeType, int, int]]:
        return [(t, fanout, counts[t[2]]) for t, fanout in self.fanouts.items()]
