"""A graph folder with the most visited nodes of random walks as a further edge type."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from khop.api.open_graph import open_graph
from khop.graph.atomic import refuse_existing
from khop.graph.damage import refuse_damage
from khop.graph.progress import ProgressCallback
from khop.graph.save import save_graph
from khop.sampling.listed import ids_here
from khop.sampling.node2vec import Node2Vec
from khop.sampling.walk_neighbors import WalkCounts, walk_neighbors
from khop.schema import EdgeType, edge_type_of


def walk_graph(
    path: Path,
    out: Path,
    walk: Sequence[str],
    relation: str,
    counts: WalkCounts,
    *,
    bias: Node2Vec | None = None,
    seed: int = 0,
    notice: ProgressCallback | None = None,
) -> EdgeType:
    """Write a copy of a graph folder with the edges of `khop.walk_neighbors`; return their edge type.

    `relation` names it, between the node type of the walks and itself. The edges are made while they are
    written, some at a time.
    """
    refuse_existing(out)
    graph = open_graph(path)
    assert graph.folder is not None
    edges = walk_neighbors(graph, walk, counts, bias=bias, seed=seed)
    node_type = edge_type_of(walk[0])[2]
    edge_type = edge_type_of(f"{node_type} {relation} {node_type}")
    if edge_type in graph.schema.edge_types:
        raise ValueError(
            f"relation {relation!r}: {' '.join(edge_type)} is an edge type of {path} already; give another "
            "name"
        )
    refuse_damage(graph.folder, notice)
    splits = {name: {t: ids_here(of) for t, of in graph.split(name).items()} for name in graph.split_names}
    topology = graph.in_one_piece("walks")
    save_graph(out, topology, graph.columns, splits, notice, origin=graph.folder, added={edge_type: edges})
    return edge_type
