"""Partitioning by METIS, through pymetis (the extra "metis").

It cuts fewer edges than streaming, but holds all edges in memory and uses one thread.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from khop.components import NoOptions
from khop.graph.csc_graph import CscGraph
from khop.kernels.build_csc import build_csc
from khop.kernels.csc import Csc
from khop.partition.balance import AssignRequest, Numbering, PartitionContext


@dataclass(frozen=True)
class Metis:
    """METIS (Karypis and Kumar 1998).

    It balances only the number of nodes. Other limits do not affect the result, and are only reported.
    """

    seed: int
    passes = 1

    Options = NoOptions

    @classmethod
    def build(cls, options: NoOptions, context: PartitionContext) -> Metis:
        """Make the method with the seed."""
        return cls(context.seed)

    def assign(self, request: AssignRequest) -> Tensor:
        """Assign a part to each node: int32 (nodes of all types)."""
        try:
            import pymetis
        except ImportError as error:
            raise ValueError("method metis: pymetis is not installed; pip install pymetis") from error
        request.meter.at("METIS reads the edges")
        edges = _undirected(request.graph, request.numbering)
        dtype = pymetis.zero_copy_dtype()
        adjacency = pymetis.CSRAdjacency(
            edges.indptr.numpy().astype(dtype), edges.indices.numpy().astype(dtype)
        )
        request.meter.at("METIS at work")
        _, assigned = pymetis.part_graph(request.parts, adjacency, options=pymetis.Options(seed=self.seed))
        request.meter.at("METIS", request.numbering.num_nodes)
        return torch.tensor(assigned, dtype=torch.int32)


def _undirected(graph: CscGraph, numbering: Numbering) -> Csc:
    """Return every edge of every type in both directions, without self-loops."""
    sources, destinations = [], []
    for edge_type in graph.schema.edge_types:
        csc = graph.csc(edge_type)
        csc.check()
        sources.append(csc.indices.long() + numbering.first(edge_type[0]))
        destinations.append(csc.destinations(numbering.first(edge_type[2])))
    ends = torch.stack([torch.cat(sources), torch.cat(destinations)])
    ends = ends[:, ends[0] != ends[1]]
    nodes = numbering.num_nodes
    both, _ = build_csc(torch.cat([ends[0], ends[1]]), torch.cat([ends[1], ends[0]]), nodes, nodes)
    return both
