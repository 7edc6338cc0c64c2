"""The destinations of each source that the held parts own, for exact negatives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NoReturn, Protocol

import torch
from torch import Tensor

from khop.graph import layout
from khop.graph.derived import Derived
from khop.graph.negatives import by_column, kept_partners, partner_sources
from khop.graph.partner_ranks import RelatedPartners, ranks_by_source
from khop.kernels.build_csc import index_dtype
from khop.kernels.csc import Csc
from khop.partition.book import DEGREES
from khop.partition.local_partitions import LocalPartitions
from khop.schema import EdgeType

Pairs = tuple[Tensor, Tensor]  # global ids: sources and destinations, int32 or int64 (edges) each


class Others(Protocol):
    """The edges held by processes with other parts. Collective: all processes make the same calls."""

    def counted(self, edge_type: EdgeType, own: Tensor) -> Tensor:
        """Return the counts of every destination: int64 (nodes). `own` are the counts of the held nodes."""
        ...

    def connected(self, edge_type: EdgeType, own: Pairs) -> Pairs:
        """Return the edges with sources held here. `own` are the edges with destinations held here."""
        ...


@dataclass(frozen=True)
class PartsLinks:
    """The edges of parts as draws of negatives need them.

    Each part stores the edges of its destinations. It also has the edges of its sources if the graph has the
    reverse edge type. Otherwise all parts are needed, or other processes that hold them (`others`).
    """

    held: LocalPartitions
    others: Others | None = None

    def in_degrees(self, edge_type: EdgeType) -> Tensor:
        """Return the in-degree of every destination of all parts."""
        if edge_type not in self.held.thinned:
            return self.held.folder.whole_array(layout.edge_array(edge_type, DEGREES)).long()
        assert self.others is not None, "edges of other parts were left out, too"
        own = torch.cat([csc.degrees() for csc, _ in self.held.rows(edge_type)])
        return self.others.counted(edge_type, own)

    def first_source(self, edge_type: EdgeType) -> int:
        """Return the global id of the first source node that the held parts own."""
        return self.held.folder.bounds(edge_type[0])[0]

    def partners(self, edge_type: EdgeType, order: str | None, nodes: Tensor | None) -> Csc:
        """Return the partners of each held source, built once.

        The result is stored next to the parts if it needs no other process and no edges are left out.
        """
        folder, held, (source, _, destination) = self.held.folder, self.held, edge_type
        first, *_, end = folder.bounds(source)
        count = folder.num_nodes(destination)

        def make() -> Csc:
            sources, destinations = self._pairs(edge_type)
            sources = sources - first
            if source == destination:  # so that no node is drawn as a negative for itself
                sources = torch.cat([sources, torch.arange(end - first, dtype=sources.dtype)])
                own = torch.arange(first, end, dtype=destinations.dtype)
                destinations = torch.cat([destinations, own])
            return ranks_by_source(sources, destinations, end - first, count, nodes)

        is_of_folder = not (self._asks_others(edge_type) or held.thinned)
        derived = Derived(folder.path, folder.fingerprint, folder.arrays) if is_of_folder else Derived()
        name = f".of-{folder.held[0]}-{folder.held[-1]}{by_column(order)}"
        asked = (edge_type, held.schema.reverse(edge_type) or edge_type)
        sources = [
            f"{part.path.name}/{file}"
            for part in folder.parts
            for of in asked
            for file in (layout.edge_array(of, "indptr"), layout.edge_array(of, "indices"))
        ]
        sources += partner_sources(edge_type, order)
        return kept_partners(derived, edge_type, name, (end - first, count), make, sources)

    def related(self, edge_type: EdgeType, column: str, nodes: Tensor | None) -> RelatedPartners:
        """Raise ValueError: partners by relation need all edges in one process."""
        refuse_relations(edge_type, column)

    def _asks_others(self, edge_type: EdgeType) -> bool:
        is_whole = len(self.held.folder.held) == self.held.folder.book.num_parts
        return not is_whole and self.held.schema.reverse(edge_type) is None

    def _pairs(self, edge_type: EdgeType) -> Pairs:
        """Return the edges with sources held here."""
        folder, reverse = self.held.folder, self.held.schema.reverse(edge_type)
        if len(folder.held) == folder.book.num_parts:
            return self._own(edge_type)
        if reverse is not None:
            destinations, sources = self._own(reverse)
            return sources, destinations
        if self.others is None:
            raise ValueError(
                f"exact negatives of {edge_type}: the partners of a source are in all "
                f"{folder.book.num_parts} parts; write the graph with the reverse edge "
                "type, EdgeTable(reverse_of=...), and partition the result, or use exact=False"
            )
        return self.others.connected(edge_type, self._own(edge_type))

    def _own(self, edge_type: EdgeType) -> Pairs:
        """Return the edges of the held parts."""
        dtype = index_dtype(max(self.held.folder.num_nodes(end) for end in (edge_type[0], edge_type[2])))
        sources, destinations = [], []
        for csc, first in self.held.rows(edge_type):
            csc.check()
            sources.append(csc.indices.to(dtype))
            destinations.append(csc.destinations(first, dtype))
        return torch.cat(sources), torch.cat(destinations)


def refuse_relations(edge_type: EdgeType, column: str | None) -> NoReturn:
    """Raise ValueError: exact negatives by relation need all edges in one process."""
    raise ValueError(
        f"exact negatives of {edge_type} by relation {column!r}: this process holds edges in parts; open the "
        'graph with placement="features", serve the whole graph, or use exact=False'
    )
