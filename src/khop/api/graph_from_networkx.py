"""Graphs in memory from graphs of NetworkX."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import torch

from khop.api.memory_graph import EDGE, NODE, MemoryEdges, memory_graph
from khop.api.open_graph import Graph
from khop.graph.networkx_tables import NetworkxTables


def graph_from_networkx(graph: Any) -> Graph:  # noqa: ANN401
    """Make a graph in memory, with the types "node" and ("node", "to", "node").

    Node i is the i-th of `graph.nodes`. Attributes of numbers become columns, and so do lists of as many
    numbers that all nodes or all edges have. A missing number of a node is NaN; of an edge it is 1 in
    `weight`, and 0 in other columns, beside a column NAME_missing. `graph.save` writes a graph folder.

    Args:
        graph: A `networkx.Graph`, `DiGraph`, `MultiGraph` or `MultiDiGraph`. Edges of an undirected graph are
            there in both directions.
    Returns:
        The graph. A warning names each attribute with missing values, and each that is left out.
    Raises:
        ValueError: `graph` is not a NetworkX graph.
    Example:
        >>> novel = khop.graph_from_networkx(networkx.les_miserables_graph())
    """
    if not all(hasattr(graph, name) for name in ("nodes", "edges", "is_directed")):
        raise ValueError(f"graph {graph!r}: must be a NetworkX graph")
    read = NetworkxTables.of(graph)
    for note in read.notes:
        warnings.warn(note, stacklevel=2)
    sources, destinations, columns = read.sources, read.destinations, read.edge_columns
    is_symmetric = not graph.is_directed()
    if is_symmetric:
        other = sources != destinations
        columns = {name: np.concatenate([column, column[other]]) for name, column in columns.items()}
        sources, destinations = (
            np.concatenate([sources, destinations[other]]),
            np.concatenate([destinations, sources[other]]),
        )
    edges = MemoryEdges(
        torch.from_numpy(sources),
        torch.from_numpy(destinations),
        {name: torch.from_numpy(column) for name, column in columns.items()},
    )
    nodes = {name: torch.from_numpy(column) for name, column in read.node_columns.items()}
    reverses = {EDGE: EDGE} if is_symmetric else {}
    return memory_graph({NODE: len(read.ids)}, {EDGE: edges}, {NODE: nodes}, reverse_of=reverses)
