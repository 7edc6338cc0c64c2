"""Nodes of a graph in parts that exist before a time, by the edges of all parts."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from khop.sampling.time_split import ColumnEdges, nodes_before, nodes_with_edges_before
from khop.schema import NodeType
from khop.servers.frame import Frame, Tensors
from khop.servers.json_fields import Plain, by_type
from khop.servers.parts.exchange import Query
from khop.servers.parts.graph import SharedGraph
from khop.servers.parts.wire import TOUCHED
from khop.servers.served import Answered


def existing(graph: SharedGraph, edges: ColumnEdges, limit: int) -> Mapping[NodeType, Tensor]:
    """Mark the nodes that exist before a time, bool (nodes), for the types where times say so.

    `edges` are those of this part. Every other server is asked once.
    """
    types = {end for t in graph.schema.edge_types for end in (t[0], t[2])}

    def read(part: int, frame: Frame) -> dict[NodeType, Tensor]:
        found = {t: frame.tensor(number) for t, number in frame.document["marks"].entries()}
        for node_type, marks in found.items():
            if node_type not in types or marks.dtype != torch.bool:
                raise ValueError(f"marks of {node_type!r}: are {marks.dtype} {tuple(marks.shape)}")
            if marks.shape != (graph.num_nodes(str(node_type)),):
                raise ValueError(f"marks of {node_type!r}: are {tuple(marks.shape)}, one per node is asked")
        return {str(t): marks for t, marks in found.items()}

    exchange, fields = graph.exchange, {"view": list(graph.view), "limit": limit}
    touched, found = exchange.ask(
        TOUCHED,
        dict.fromkeys(exchange.others, Query(fields)),
        read,
        lambda: nodes_with_edges_before(edges, limit),
    )
    for of_part in found.values():
        for node_type, marks in of_part.items():
            touched[node_type] |= marks
    return nodes_before(edges, limit, touched)


def touched_answer(edges: ColumnEdges, limit: int) -> Answered:
    """Return the answer to a request of `existing`."""
    tensors = Tensors()
    marks: Mapping[NodeType, Plain] = {
        t: tensors(of_type) for t, of_type in nodes_with_edges_before(edges, limit).items()
    }
    return {"marks": by_type(marks)}, tensors
