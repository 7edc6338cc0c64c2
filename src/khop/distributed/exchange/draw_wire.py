"""Message formats of draws: frontiers and links as requests, neighbors and negatives as responses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from khop.distributed.exchange.peers import (
    Reader,
    Writer,
    agreement,
    as_bytes,
    check_below,
    narrowest,
    padded,
)
from khop.draw import DrawKey, DrawnNegatives, Frontier, FrontierByType, Neighbors, NeighborsByType, Positives
from khop.graph.rule import Hop
from khop.graph.rule_arrays import asked_types
from khop.kernels.draw_negatives import NothingLeft
from khop.schema import EdgeType, NodeType

MOST_PADDED = 128  # above this fanout, answers state their size, as padded rows would be mostly padding
IdRange = tuple[int, int]  # first id on a rank, and the id after its last
IdRanges = Mapping[NodeType, IdRange]


@dataclass(frozen=True)
class HopWire:
    """Format of the messages of one hop, the same on all ranks.

    The hop's rule determines the contents: fields of the frontier, edges per row, and weights.
    """

    most: Mapping[EdgeType, int | None]  # maximum edges per row, by drawn edge type, in order
    sources: Mapping[EdgeType, int]  # number of nodes of the source type
    edges: Mapping[EdgeType, int] | None  # number of edges; None: no edge ids are requested
    weighted: frozenset[EdgeType]  # edge types whose neighbors have weights
    has_times: bool  # neighbors have the times of their edges
    fields: Mapping[NodeType, tuple[str, ...]]  # fields of the frontier that are sent with the nodes
    digest: int  # hash of everything that must agree on all ranks

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
        digest = agreement(
            key, hop.number, list(fanouts.items()), hop.rule, hop.edge_ids, list(fields.items())
        )
        return cls(
            {edge_type: hop.rule.most(fanout) for edge_type, fanout in fanouts.items()},
            {edge_type: nodes[edge_type[0]] for edge_type in fanouts},
            {edge_type: edges[edge_type] for edge_type in fanouts} if hop.edge_ids else None,
            frozenset(edge_type for edge_type, fanout in fanouts.items() if hop.rule.has_weights(fanout)),
            hop.rule.has_times,
            fields,
            digest,
        )

    @property
    def node_types(self) -> tuple[NodeType, ...]:
        """Frontier node types for which edges are drawn."""
        return tuple(dict.fromkeys(edge_type[2] for edge_type in self.most))

    @property
    def is_bounded(self) -> bool:
        """True if the requesting rank can compute the size of an answer in bytes."""
        return all(most is not None and most <= MOST_PADDED for most in self.most.values())

    def request(self, frontier: FrontierByType, spans: IdRanges) -> Tensor:
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
        digest, *counts = reader.numbers(1 + len(types))
        if digest != self.digest:
            raise ValueError("the request is for another hop, or for another key")
        found = {}
        for node_type, count in zip(types, counts, strict=True):
            first, end = spans[node_type]
            ids = reader.below(end - first, count, f"frontier node of {node_type!r}")
            fields = {name: reader.take(torch.int64, count) for name in self.fields[node_type]}
            found[node_type] = Frontier(ids.long() + first, **fields)
        reader.check_done()
        return found

    def size(self, counts: Mapping[NodeType, int]) -> int:
        """Return the bytes of an answer for these row counts; for bounded hops only."""
        return sum(
            padded(4 * counts[edge_type[2]]) + self._edge_bytes(edge_type, counts[edge_type[2]] * (most or 0))
            for edge_type, most in self.most.items()
        )

    def size_of(self, drawn: NeighborsByType) -> int:
        """Return the bytes of the answer that `write` makes for these neighbors."""
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
            if edge_type in self.weighted:
                assert found.weights is not None
                writer.put(found.weights, torch.float32, room)
            if self.has_times:
                assert found.times is not None
                writer.put(found.times, torch.int64, room)

    def neighbors(self, message: Tensor, counts: Mapping[NodeType, int]) -> dict[EdgeType, Neighbors]:
        """Decode the neighbors that a rank has drawn for these row counts.

        ValueError names the part of the message that is invalid.
        """
        reader, found = Reader(message), {}
        for edge_type, given in self.most.items():
            most, rows = given or 0, counts[edge_type[2]]
            degrees = reader.take(torch.int32 if self.is_bounded else torch.int64, rows).long()
            # An edge takes a byte or more. Larger degrees could overflow their sum.
            limit = most + 1 if self.is_bounded else message.numel() + 1
            check_below(degrees, limit, f"degree of {edge_type}")
            offsets = torch.cat([degrees.new_zeros(1), degrees.cumsum(0)])
            total = int(offsets[-1])
            room = rows * most if self.is_bounded else total
            nodes = reader.take(narrowest(self.sources[edge_type]), room)[:total]
            check_below(nodes, self.sources[edge_type], f"source of {edge_type}")
            edges = None
            if self.edges is not None:
                edges = reader.take(torch.int64, room)[:total]
                check_below(edges, self.edges[edge_type], f"edge of {edge_type}")
            weights = reader.take(torch.float32, room)[:total] if edge_type in self.weighted else None
            times = reader.take(torch.int64, room)[:total] if self.has_times else None
            found[edge_type] = Neighbors(offsets, nodes, edges, weights, times)
        reader.check_done()
        return found

    def _edge_bytes(self, edge_type: EdgeType, count: int) -> int:
        """Return the bytes of `count` edges: sources, and ids, weights and times if these are sent."""
        ids = 8 * count * ((self.edges is not None) + self.has_times)
        weights = padded(4 * count) if edge_type in self.weighted else 0
        return padded(count * narrowest(self.sources[edge_type]).itemsize) + ids + weights


@dataclass(frozen=True)
class NegativeWire:
    """Format of the messages of one draw of exact negatives, the same on all ranks."""

    per_positive: int
    candidates: int  # number of nodes of the destination type
    has_until: bool
    time_column: str | None
    digest: int  # hash of everything that must agree on all ranks

    @classmethod
    def of(
        cls,
        edge_type: EdgeType,
        negatives: DrawnNegatives,
        positives: Positives,
        key: DrawKey,
        candidates: int,
    ) -> NegativeWire:
        """Return the format of a draw among `candidates` nodes."""
        assert positives.relations is None  # callers have refused them
        has_until = positives.until is not None
        digest = agreement(key, edge_type, negatives, has_until, positives.time_column)
        return cls(negatives.per_positive, candidates, has_until, positives.time_column, digest)

    def request(self, positives: Positives, span: IdRange) -> Tensor:
        """Encode links for the rank that stores their sources. Returns uint8 (n)."""
        sources = (positives.sources - span[0]).to(narrowest(span[1] - span[0]))
        pieces = [torch.tensor([self.digest, sources.numel()]), sources, positives.positions]
        return as_bytes(pieces if positives.until is None else [*pieces, positives.until])

    def positives(self, message: Tensor, span: IdRange) -> Positives:
        """Decode the links of another rank's request; ValueError names the invalid part."""
        reader = Reader(message)
        digest, count = reader.numbers(2)
        if digest != self.digest:
            raise ValueError("the request is for other negatives, or for another key")
        sources = reader.below(span[1] - span[0], count, "source")
        positions = reader.take(torch.int64, count)
        until = reader.take(torch.int64, count) if self.has_until else None
        reader.check_done()
        return Positives(sources.long() + span[0], positions, until, self.time_column)

    def size(self, links: int) -> int:
        """Return the bytes of an answer for this number of links."""
        return 8 + padded(links * self.per_positive * narrowest(self.candidates).itemsize)

    def answer(self, drawn: Tensor | NothingLeft, links: int) -> Tensor:
        """Encode the drawn negatives, or a link without remaining candidates. Returns uint8 (n)."""
        if isinstance(drawn, NothingLeft):
            culprit, drawn = drawn.link, torch.zeros(links, self.per_positive, dtype=torch.int64)
        else:
            culprit = -1
        return as_bytes([torch.tensor([culprit]), drawn.flatten().to(narrowest(self.candidates))])

    def drawn(self, message: Tensor, links: int) -> Tensor | NothingLeft:
        """Decode an answer: int64 (links, per_positive), or a link without remaining candidates.

        ValueError names the part of the message that is invalid.
        """
        reader = Reader(message)
        (culprit,) = reader.numbers(1)
        if not -1 <= culprit < links:
            raise ValueError(f"nothing is left for link {culprit} of {links}")
        found = reader.below(self.candidates, links * self.per_positive, "destination")
        reader.check_done()
        return NothingLeft(culprit) if culprit >= 0 else found.long().view(links, self.per_positive)
