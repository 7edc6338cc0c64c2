"""Negatives drawn from edges in parts on several servers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Tensor

from khop.draw import DrawKey, DrawnNegatives, Positives
from khop.exchange.codec import check_below
from khop.exchange.draw_wire import NegativeWire
from khop.graph.negatives import NegativeTables, NothingLeft, all_drawn
from khop.kernels.owners import ByOwner, first_outside
from khop.partition.local_partitions import LocalPartitions
from khop.partition.parts_links import Pairs, PartsLinks, refuse_relations
from khop.sampling.link_split import EdgeRange
from khop.schema import EdgeType, NodeType
from khop.servers.counts import MOST_EDGES, checked_counts
from khop.servers.frame import Frame, Tensors
from khop.servers.json_fields import Plain
from khop.servers.parts.exchange import PartExchange, Query
from khop.servers.parts.wire import DEGREES, EDGES, NEGATIVES, negative_fields
from khop.servers.settings import View

EDGES_AT_ONCE = 1 << 22  # of one request


class SharedNegatives:
    """Draws of negatives from a graph in parts.

    Exact negatives are drawn by the owners of the sources. All others are drawn here. `candidates` marks the
    nodes of some types that may be drawn, bool (nodes).
    """

    def __init__(
        self,
        held: LocalPartitions,
        exchange: PartExchange,
        view: View,
        candidates: Mapping[NodeType, Tensor] = MappingProxyType({}),
    ) -> None:
        self._held, self._exchange, self._view = held, exchange, view
        folder = held.folder
        counts = {node_type: folder.num_nodes(node_type) for node_type in held.schema.node_types}
        links = PartsLinks(held, OtherEdges(held, exchange, view))
        self.tables = NegativeTables(counts, held.nodes.originals, folder.columns(), links, candidates)

    def draw(
        self, edge_type: EdgeType, negatives: DrawnNegatives, positives: Positives, key: DrawKey
    ) -> Tensor:
        """Draw destinations, int64 (links, per_positive); see GraphStore.

        ValueError if a source does not exist.
        """
        if not negatives.exact:
            return self.tables.draw(edge_type, negatives, positives, key)
        if positives.relations is not None:
            refuse_relations(edge_type, positives.relation_column)
        source, _, destination = edge_type
        folder, own = self._held.folder, self._exchange.part
        position = first_outside(positives.sources, (0, folder.num_nodes(source)))
        if position >= 0:
            raise ValueError(
                f"negatives of {edge_type}: source {int(positives.sources[position])}: there are "
                f"{folder.num_nodes(source)} {source!r} nodes"
            )
        bounds = folder.book.offsets[source]
        wire = NegativeWire.of(edge_type, negatives, positives, key, folder.num_nodes(destination))
        owners = ByOwner.of(positives.sources, bounds)
        shares = owners.positives(positives)
        fields = negative_fields(self._view, edge_type, negatives, positives, key)
        queries = {}
        for part in self._exchange.others:
            if shares[part].sources.numel():
                tensors = Tensors()
                links = tensors(wire.request(shares[part], (bounds[part], bounds[part + 1])))
                queries[part] = Query({**fields, "links": links}, tensors)

        def read(part: int, frame: Frame) -> Tensor | NothingLeft:
            return wire.drawn(frame.tensor(frame.document["drawn"]), shares[part].sources.numel())

        mine, found = self._exchange.ask(
            NEGATIVES, queries, read, lambda: self.tables.drawn(edge_type, negatives, shares[own], key)
        )
        nothing = torch.empty(0, negatives.per_positive, dtype=torch.int64)
        drawn = [mine if part == own else found.get(part, nothing) for part in range(len(shares))]
        by_part = zip(drawn, shares, strict=True)
        return owners.joined([all_drawn(of, edge_type, negatives, share) for of, share in by_part])


@dataclass(frozen=True)
class OtherEdges:
    """The edges of other parts, as draws of negatives need them (an Others)."""

    held: LocalPartitions
    exchange: PartExchange
    view: View

    def counted(self, edge_type: EdgeType, own: Tensor) -> Tensor:
        """Return the counts of every destination, int64 (nodes); `own` are those of the nodes held here."""
        bounds = self.held.folder.book.offsets[edge_type[2]]
        fields: dict[str, Plain] = {"view": list(self.view), "type": list(edge_type)}
        queries = {
            part: Query({**fields, "first": bounds[part], "end": bounds[part + 1]})
            for part in self.exchange.others
        }

        def read(part: int, frame: Frame) -> Tensor:
            return checked_counts(frame, bounds[part + 1] - bounds[part])

        _, found = self.exchange.ask(DEGREES, queries, read, lambda: None)
        found[self.exchange.part] = own
        return torch.cat([found[part] for part in sorted(found)])

    def connected(self, edge_type: EdgeType, own: Pairs) -> Pairs:
        """Return the edges with sources held here. `own` are the edges with destinations held here."""
        bounds, count = self.held.folder.book.offsets[edge_type[0]], self.held.folder.num_nodes(edge_type[2])
        first, end = bounds[self.exchange.part : self.exchange.part + 2]
        is_here = (own[0] >= first) & (own[0] < end)
        pieces = [torch.stack([ends[is_here] for ends in own])]

        def read(part: int, frame: Frame) -> tuple[int, Tensor]:
            pairs = frame.tensor(frame.document["edges"])
            if pairs.dim() != 2 or pairs.shape[0] != 2 or pairs.dtype not in (torch.int32, torch.int64):
                raise ValueError(f"edges: are {pairs.dtype} {tuple(pairs.shape)}")
            check_below(pairs[0] - first, end - first, "source")
            check_below(pairs[1], count, "destination")
            return frame.document["count"].whole(0, MOST_EDGES), pairs

        begin, left = 0, list(self.exchange.others)
        while left:
            fields: dict[str, Plain] = {
                "view": list(self.view),
                "type": list(edge_type),
                "span": [first, end],
                "begin": begin,
            }
            _, found = self.exchange.ask(EDGES, dict.fromkeys(left, Query(fields)), read, lambda: None)
            pieces += [pairs.to(pieces[0].dtype) for _, pairs in found.values()]
            begin += EDGES_AT_ONCE
            left = [part for part, (total, _) in found.items() if begin < total]
        sources, destinations = torch.cat(pieces, dim=1)
        return sources.contiguous(), destinations.contiguous()


def edges_between(
    held: LocalPartitions, edge_type: EdgeType, span: Sequence[int], begin: int
) -> tuple[int, Tensor]:
    """Return the number of edges held here, and those of `EDGES_AT_ONCE` with sources in a span, (2, n)."""
    ((csc, first),) = held.rows(edge_type)
    some = torch.arange(min(begin, csc.num_edges), min(begin + EDGES_AT_ONCE, csc.num_edges))
    ends = EdgeRange(csc, first).ends(some)
    return csc.num_edges, ends[:, (ends[0] >= span[0]) & (ends[0] < span[1])]
