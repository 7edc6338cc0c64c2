"""Who is connected to whom, by source, of the sources that the held parts own: what exact negatives ask."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from khop.graph import layout
from khop.graph.derived import Derived
from khop.graph.negatives import kept_partners, ranks_by_source
from khop.kernels.csc import Csc
from khop.partition.parts_folder import PartsFolder
from khop.partition.wholes import DEGREES
from khop.schema import EdgeType


@dataclass(frozen=True)
class PartsLinks:
    """What draws of negatives ask of the edges of parts.

    Edges lie with their destinations. Those of a source lie with it where the graph has the edge type turned
    round, too; else all parts are needed.
    """

    folder: PartsFolder

    def in_degrees(self, edge_type: EdgeType) -> Tensor:
        """Of every destination, in whichever part."""
        return self.folder.whole_array(layout.edge_array(edge_type, DEGREES)).long()

    def first_source(self, edge_type: EdgeType) -> int:
        """The first that the held parts own."""
        return self.folder.bounds(edge_type[0])[0]

    def partners(self, edge_type: EdgeType, order: str, nodes: Tensor | None) -> Csc:
        """Made once, and kept beside the parts."""
        folder, (source, _, destination) = self.folder, edge_type
        first, *_, end = folder.bounds(source)
        count = folder.num_nodes(destination)

        def make() -> Csc:
            pairs = list(self._pairs(edge_type))
            if source == destination:  # a node is its own partner
                pairs.append((torch.arange(end - first), torch.arange(first, end)))
            sources, destinations = (torch.cat(ends) for ends in zip(*pairs, strict=True))
            return ranks_by_source(sources, destinations, end - first, count, nodes)

        derived = Derived(folder.path, folder.fingerprint)
        name = f".of-{folder.held[0]}-{folder.held[-1]}{order}"
        return kept_partners(derived, edge_type, name, (end - first, count), make)

    def _pairs(self, edge_type: EdgeType) -> Iterator[tuple[Tensor, Tensor]]:
        """int64 (edges) each: sources, from the first held one on, beside their destinations."""
        folder, reverse = self.folder, self.folder.schema.reverse(edge_type)
        if len(folder.held) == folder.book.num_parts:
            for part, first in zip(folder.parts, folder.bounds(edge_type[2]), strict=False):
                csc = part.csc(edge_type)
                yield csc.indices.long(), _rows(csc) + first
            return
        if reverse is None:
            raise ValueError(
                f"exact negatives of {edge_type}: the partners of a source lie in all "
                f"{folder.book.num_parts} parts; write the graph with the edges turned round, which lie with "
                "it, EdgeTable(reverse_of=...), and cut that, or take exact=False"
            )
        bounds = folder.bounds(edge_type[0])
        for part, first in zip(folder.parts, bounds, strict=False):
            csc = part.csc(reverse)
            yield _rows(csc) + (first - bounds[0]), csc.indices.long()


def _rows(csc: Csc) -> Tensor:
    """The row of every edge."""
    return torch.repeat_interleave(torch.arange(csc.num_rows), csc.indptr.diff(), output_size=csc.num_edges)
