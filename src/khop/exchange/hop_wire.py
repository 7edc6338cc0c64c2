"""Wire format of one hop between ranks: frontiers as requests, drawn neighbors as answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from zlib import crc32

import torch
from torch import Tensor

from khop.draw import DrawKey, Frontier, FrontierByType, Neighbors, NeighborsByType, mix64
from khop.exchange.pieces import Reader, Writer, as_bytes, check_below, filled, narrowest
from khop.graph.edge_draws import asked_types
from khop.rules.rule import Hop
from khop.schema import EdgeType, NodeType

MOST_PADDED = 128  # above this fanout answers state their size: padded rows would be mostly padding
IdRanges = Mapping[NodeType, tuple[int, int]]  # first id on a rank, and the id after its last


@dataclass(frozen=True)
class HopWire:
    """Format of the messages of one hop, the same on all ranks. Each piece is padded to 8 bytes.

    The rule of the hop decides on its contents: fields of the frontier, edges per row and weights.
    """

    most: Mapping[EdgeType, int | None]  # edge types that are drawn, in order: the most edges of a row
    sources: Mapping[EdgeType, int]  # number of nodes of the source type
    edges: Mapping[EdgeType, int] | None  # number of edges; None: no edge ids are requested
    has_weights: bool  # neighbors have weights
    fields: Mapping[NodeType, tuple[str, ...]]  # fields of the frontier that are sent beside the nodes
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
        read = hop.rule.frontier_fields
        fields = {t: tuple(name for name in of.fields if name in read) for t, of in frontier.items()}
        words = repr((hop.number, list(fanouts.items()), hop.rule, hop.edge_ids, list(fields.items())))
        return cls(
            {edge_type: hop.rule.most(fanout) for edge_type, fanout in fanouts.items()},
            {edge_type: nodes[edge_type[0]] for edge_type in fanouts},
            {edge_type: edges[edge_type] for edge_type in fanouts} if hop.edge_ids else None,
            hop.rule.has_weights,
            fields,
            mix64(key.value ^ crc32(words.encode())) >> 1,
        )

    @property
    def node_types(self) -> tuple[NodeType, ...]:
        """Frontier node types for which edges are drawn."""
        return tuple(dict.fromkeys(edge_type[2] for edge_type in self.most))

    @property
    def is_bounded(self) -> bool:
        """True if the requesting rank can compute the size of an answer in bytes."""
        return all(most is not None and most <= MOST_PADDED for most in self.most.values())

    def question(self, frontier: FrontierByType, spans: IdRanges) -> Tensor:
        """Encode a frontier for a rank that stores the ids of `spans`. Returns uint8 (n)."""
        counts = [frontier[node_type].nodes.numel() for node_type in self.node_types]
        pieces = [torch.tensor([self.digest, *counts])]
        for node_type in self.node_types:
            of_type, (first, end) = frontier[node_type], spans[node_type]
            pieces.append((of_type.nodes - first).to(narrowest(end - first)))
            pieces += [of_type.fields[name] for name in self.fields[node_type]]
        return as_bytes(pieces)

    def frontier(self, message: Tensor, spans: IdRanges) -> dict[NodeType, Frontier]:
        """Decode the frontier that another rank sent to this one, which stores the ids of `spans`.

        ValueError names the part of the message that is invalid.
        """
        types = self.node_types
        reader = Reader(message)
        digest, *counts = reader.take(torch.int64, 1 + len(types)).tolist()
        if digest != self.digest:
            raise ValueError("the request is for another hop, or for another key")
        found = {}
        for node_type, count in zip(types, counts, strict=True):
            first, end = spans[node_type]
            ids = reader.take(narrowest(end - first), count)
            check_below(ids, end - first, f"frontier node of {node_type!r}")
            fields = {name: reader.take(torch.int64, count) for name in self.fields[node_type]}
            found[node_type] = Frontier(ids.long() + first, **fields)
        reader.check_done()
        return found

    def size(self, counts: Mapping[NodeType, int]) -> int:
        """Return the bytes of an answer for these row counts; for bounded hops only."""
        return sum(
            filled(4 * counts[edge_type[2]]) + self._edge_bytes(edge_type, counts[edge_type[2]] * (most or 0))
            for edge_type, most in self.most.items()
        )

    def size_of(self, drawn: NeighborsByType) -> int:
        """Return the bytes of the answer that `write` makes from these neighbors."""
        rows = {edge_type[2]: drawn[edge_type].offsets.numel() - 1 for edge_type in self.most}
        if self.is_bounded:
            return self.size(rows)
        return sum(
            8 * rows[edge_type[2]] + self._edge_bytes(edge_type, drawn[edge_type].nodes.numel())
            for edge_type in self.most
        )

    def write(self, drawn: NeighborsByType, message: Tensor) -> None:
        """Write drawn neighbors into a message; in a bounded hop every row is padded."""
        writer = Writer(message)
        for edge_type, most in self.most.items():
            found = drawn[edge_type]
            degrees, room = found.offsets.diff(), found.nodes.numel()
            if self.is_bounded:
                room = degrees.numel() * (most or 0)
            writer.put(degrees, torch.int32 if self.is_bounded else torch.int64)
            writer.put(found.nodes, narrowest(self.sources[edge_type]), room)
            if self.edges is not None:
                assert found.edges is not None
                writer.put(found.edges, torch.int64, room)
            if self.has_weights:
                assert found.weights is not None
                writer.put(found.weights, torch.float32, room)

    def neighbors(self, message: Tensor, counts: Mapping[NodeType, int]) -> dict[EdgeType, Neighbors]:
        """Decode the neighbors that a rank has drawn for these row counts.

        ValueError names the part of the message that is invalid.
        """
        reader, found = Reader(message), {}
        for edge_type, given in self.most.items():
            most, rows = given or 0, counts[edge_type[2]]
            degrees = reader.take(torch.int32 if self.is_bounded else torch.int64, rows).long()
            check_below(degrees, most + 1 if self.is_bounded else 1 << 60, f"degree of {edge_type}")
            offsets = torch.cat([degrees.new_zeros(1), degrees.cumsum(0)])
            total = int(offsets[-1])
            room = rows * most if self.is_bounded else total
            nodes = reader.take(narrowest(self.sources[edge_type]), room)[:total]
            check_below(nodes, self.sources[edge_type], f"source of {edge_type}")
            edges = None
            if self.edges is not None:
                edges = reader.take(torch.int64, room)[:total]
                check_below(edges, self.edges[edge_type], f"edge of {edge_type}")
            weights = reader.take(torch.float32, room)[:total] if self.has_weights else None
            found[edge_type] = Neighbors(offsets, nodes, edges, weights)
        reader.check_done()
        return found

    def _edge_bytes(self, edge_type: EdgeType, count: int) -> int:
        """Return the bytes of `count` edges: their sources, and their ids and weights if these are sent."""
        ids = 0 if self.edges is None else 8 * count
        weights = filled(4 * count) if self.has_weights else 0
        return filled(count * narrowest(self.sources[edge_type]).itemsize) + ids + weights
