"""Graphs in memory from graphs of NetworkX."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any

import numpy as np
import torch
from torch import Tensor

from khop.api.memory_graph import EDGE, NODE, MemoryEdges, memory_graph
from khop.api.open_graph import Graph


def graph_from_networkx(graph: Any) -> Graph:  # noqa: ANN401
    """Make a graph in memory, with the types "node" and ("node", "to", "node").

    Node i is the i-th of `graph.nodes`. Numbers, or lists of as many numbers, that all nodes or all
    edges have become columns; other attributes are left out. Edges of an undirected graph are there in both
    directions. `graph.save` writes a graph folder.
    """
    if not all(hasattr(graph, name) for name in ("nodes", "edges", "is_directed")):
        raise ValueError(f"graph {graph!r}: must be a NetworkX graph")
    nodes = {node: row for row, node in enumerate(graph.nodes)}
    rows = [(nodes[u], nodes[v], given) for u, v, given in graph.edges(data=True)]
    is_symmetric = not graph.is_directed()
    if is_symmetric:
        rows += [(v, u, given) for u, v, given in rows if u != v]
    ends = torch.tensor([(u, v) for u, v, _ in rows], dtype=torch.int64).view(-1, 2)
    edges = MemoryEdges(
        ends[:, 0].contiguous(), ends[:, 1].contiguous(), _columns([given for _, _, given in rows])
    )
    columns = {NODE: _columns([given for _, given in graph.nodes(data=True)])}
    reverses = {EDGE: EDGE} if is_symmetric else {}
    return memory_graph({NODE: len(nodes)}, {EDGE: edges}, columns, reverse_of=reverses)


def _columns(given: Sequence[Mapping[Any, Any]]) -> dict[str, Tensor]:
    names = [name for name in given[0] if isinstance(name, str)] if given else []
    made = ((name, _column([one.get(name) for one in given])) for name in names)
    return {name: column for name, column in made if column is not None}


def _column(values: Sequence[Any]) -> Tensor | None:
    """Return a column; None if a value is missing or no number, or if lists differ in length."""
    if not all(isinstance(value, Real | list | tuple | np.ndarray) for value in values):
        return None
    try:
        array = np.asarray(values)
    except ValueError:
        return None
    if array.dtype.kind not in "iufb":
        return None
    return torch.from_numpy(array.astype(np.float32) if array.dtype.kind == "f" else array)
