"""A graph in parts on several servers, sampled as if all of its edges were local."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import MappingProxyType

import torch
from torch import Tensor

from khop.distributed.partitioned_graph import HopShares
from khop.draw import DrawKey, DrawnNegatives, FrontierByType, NeighborsByType, Positives
from khop.exchange.draw_wire import IdRanges
from khop.graph.edge_draws import check_edge_type
from khop.graph.needs import Need
from khop.graph.store import NumberedGraph
from khop.kernels.owners import ByOwner
from khop.partition.local_partitions import LocalPartitions
from khop.rules.rule import Hop
from khop.schema import EdgeType, NodeType
from khop.servers.counts import checked_counts, written_nodes
from khop.servers.frame import Frame, Tensors
from khop.servers.json_fields import Plain
from khop.servers.parts.exchange import PartExchange, Query
from khop.servers.parts.negatives import SharedNegatives
from khop.servers.parts.wire import DEGREES, HOP, hop_fields
from khop.servers.settings import View

_NO_BYTES = torch.empty(0, dtype=torch.uint8)


class SharedGraph(NumberedGraph):
    """A graph store over the edges of one part; other servers draw from the other parts.

    A hop asks each part that has nodes of the frontier, all at once, and only then. Draws equal those of the
    graph before partitioning. Threads may share the store; each makes hops of its own.
    """

    def __init__(
        self,
        held: LocalPartitions,
        exchange: PartExchange,
        view: View = (),
        candidates: Mapping[NodeType, Tensor] = MappingProxyType({}),
    ) -> None:
        self.held, self.exchange, self.view = held, exchange, view
        self.candidates = candidates  # bool (nodes) by type: drawn as negatives; default: all
        self.schema, self.nodes = held.schema, held.nodes
        self.num_all_edges = {t: held.folder.num_edges(t) for t in held.schema.edge_types}
        self.negatives = SharedNegatives(held, exchange, view, candidates)

    @property
    def bounds(self) -> Mapping[NodeType, tuple[int, ...]]:
        """First node of each part, and the end of the last, by type."""
        return self.held.folder.book.offsets

    def spans(self, part: int) -> IdRanges:
        """Return the range of the nodes of a part, by type."""
        return {t: (of_type[part], of_type[part + 1]) for t, of_type in self.bounds.items()}

    def num_edges(self, edge_type: EdgeType) -> int:
        """Return the number of edges of a type in all parts; Unsupported if some are left out."""
        self.held.check_unthinned(edge_type)
        return self.num_all_edges[edge_type]

    def in_degrees(self, edge_type: EdgeType, nodes: Tensor) -> Tensor:
        """Return the number of in-edges of some nodes, int64 (nodes), with one request to each owner."""
        check_edge_type(edge_type, self.schema)
        owners, own = ByOwner.of(nodes, self.bounds[edge_type[2]]), self.exchange.part
        shares = owners.split(nodes)
        queries = {}
        for part in self.exchange.others:
            if shares[part].numel():
                tensors = Tensors()
                fields: dict[str, Plain] = {"view": list(self.view), "type": list(edge_type)}
                fields |= written_nodes(shares[part], tensors)
                queries[part] = Query(fields, tensors)

        def read(part: int, frame: Frame) -> Tensor:
            return checked_counts(frame, shares[part].numel())

        mine, found = self.exchange.ask(
            DEGREES, queries, read, lambda: self.held.in_degrees(edge_type, shares[own])
        )
        found[own] = mine
        return owners.joined([found.get(part, mine[:0]) for part in range(len(shares))])

    def prepare(self, needs: Collection[Need]) -> None:
        """Build now the arrays that draws of this part need; see GraphStore."""
        self.held.prepare(needs)
        super().prepare(needs)

    def sample_hop(self, frontier: FrontierByType, hop: Hop, key: DrawKey) -> NeighborsByType:
        """Draw in-edges of every frontier node; see GraphStore."""
        shares = HopShares.of(frontier, hop, key, self.held, self.num_all_edges, self.bounds)
        wire, counts = shares.wire, [shares.counts(part) for part in range(self.held.folder.book.num_parts)]
        queries = {}
        for part in self.exchange.others:
            if any(counts[part].values()):
                tensors = Tensors()
                message = wire.request(shares.frontier(part), self.spans(part))
                queries[part] = Query(
                    {**hop_fields(self.view, hop, key, wire), "frontier": tensors(message)}, tensors
                )

        def read(part: int, frame: Frame) -> NeighborsByType:
            return wire.neighbors(bytes_of(frame, "drawn"), counts[part])

        own = self.exchange.part
        mine, found = self.exchange.ask(
            HOP, queries, read, lambda: self.held.sample_hop(shares.frontier(own), hop, key)
        )
        nothing = wire.neighbors(_NO_BYTES, dict.fromkeys(shares.frontiers, 0))
        return shares.joined(
            [mine if part == own else found.get(part, nothing) for part in range(len(counts))]
        )

    def sample_negatives(
        self, edge_type: EdgeType, negatives: DrawnNegatives, positives: Positives, key: DrawKey
    ) -> Tensor:
        """Draw destinations for the sources of links; see GraphStore."""
        check_edge_type(edge_type, self.schema)
        return self.negatives.draw(edge_type, negatives, positives, key)

    def only(self, edge_types: Collection[EdgeType]) -> SharedGraph:
        """Return the same graph with only these edge types, and the node types at their ends."""
        kept = [list(t) for t in self.schema.edge_types if t in edge_types]
        return self.after({"only": kept}, self.held.only(edge_types))

    def after(
        self, step: Plain, held: LocalPartitions, candidates: Mapping[NodeType, Tensor] = MappingProxyType({})
    ) -> SharedGraph:
        """Return the graph after one more step of its view.

        `held` are the edges of this part after the step. Negatives are drawn from the `candidates` of these
        types from then on.
        """
        drawn = {**self.candidates, **candidates}
        return SharedGraph(held, self.exchange, (*self.view, step), drawn)


def bytes_of(frame: Frame, name: str) -> Tensor:
    """Return a field of a message that is bytes, uint8 (n)."""
    found = frame.tensor(frame.document[name])
    if found.dtype != torch.uint8 or found.dim() != 1:
        raise ValueError(f"{frame.document.where}.{name}: is {found.dtype} {tuple(found.shape)}, not bytes")
    return found
