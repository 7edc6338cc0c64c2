"""Graphs as a person would write them, in memory and as folders."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from contracts.graph_store import Plain, int64
from khop.graph.build import EdgeTable, NodeTable, write_graph
from khop.graph.csc_graph import CscGraph, csc_graph_from_edges


def ends(pairs: list[tuple[int, int]]) -> tuple[Tensor, Tensor]:
    sources, destinations = int64([s for s, _ in pairs]), int64([d for _, d in pairs])
    return sources, destinations


def in_memory(plain: Plain) -> CscGraph:
    graph = csc_graph_from_edges(
        plain.counts,
        {name: ends(pairs) for name, pairs in plain.edges.items()},
        columns={type_: plain.tensors(type_) for type_ in plain.columns},
        sort_by=plain.sort_by,
    )
    originals = {node_type: int64(ids) for node_type, ids in plain.original_ids.items()}
    return CscGraph(graph.schema, graph.counts, graph.edges, originals, graph.columns)


def written(path: Path, plain: Plain) -> Path:
    originals = plain.original_ids
    nodes = {
        name: NodeTable(
            number,
            plain.tensors(name) | ({"original_id": int64(originals[name])} if name in originals else {}),
        )
        for name, number in plain.counts.items()
    }
    edges = {
        name: EdgeTable(*ends(pairs), columns=plain.tensors(name)) for name, pairs in plain.edges.items()
    }
    return write_graph(path, nodes, edges, sort_by=plain.sort_by)
