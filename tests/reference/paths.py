"""Temporal neighborhoods by recursion, as TGAT and TGN compute them: one node at a time, in NumPy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from khop.draw import stream
from khop.graph.store import CscGraph
from khop.sampling.rules.temporal import Temporal
from khop.schema import EdgeType, NodeType
from khop.testing.graph_rules import Edge, specified
from khop.testing.reference import Row, tree_key

# The edges of a node: edge type, position in the graph, time from edge to limit, the source's edges.
Tree = list[tuple[EdgeType, int, int, "Tree"]]


@dataclass(frozen=True)
class Interactions:
    """The interactions of each node, in the order of time: TGAT's `NeighborFinder`."""

    sources: Sequence[np.ndarray]
    times: Sequence[np.ndarray]

    def before(self, node: int, time: int, count: int) -> tuple[np.ndarray, np.ndarray]:
        """The last `count` interactions that are earlier than a time."""
        end = np.searchsorted(self.times[node], time, side="left")
        begin = max(0, end - count)
        return self.sources[node][begin:end], self.times[node][begin:end]

    def levels(self, nodes: Sequence[int], times: Sequence[int], fanouts: Sequence[int]) -> list[np.ndarray]:
        """By hop, rows (node, time of its edge, time between its limit and its edge)."""
        found = []
        for count in fanouts:
            rows = [
                (source, at, limit - at)
                for node, limit in zip(nodes, times, strict=True)
                for source, at in zip(*self.before(node, limit, count), strict=True)
            ]
            found.append(np.array(rows, dtype=np.int64).reshape(-1, 3))
            nodes, times = found[-1][:, 0].tolist(), found[-1][:, 1].tolist()
        return found


@dataclass(frozen=True)
class Recursion:
    """Draws of a rule along paths, as docs/randomness-rules.md specifies them."""

    graph: CscGraph
    rule: Temporal
    fanouts: Sequence[int]
    key: int

    def edges(self, node_type: NodeType, node: int, limit: int, position: int, hop: int) -> Tree:
        """The edges of a node at a hop (from 1) up to a limit, and those behind them."""
        if hop > len(self.fanouts):
            return []
        found: Tree = []
        for edge_type in self.graph.schema.edge_types:
            if edge_type[2] != node_type:
                continue
            begin, row = self._row(edge_type, node)
            draws = Row(tree_key(self.key, position), node, stream(hop, edge_type), len(row))
            for pick in specified(row, limit, self.rule, self.fanouts[hop - 1], draws):
                edge = row[pick]
                time = limit if edge.time is None else edge.time
                further = time if self.rule.limit == "edge" else limit
                behind = self.edges(edge_type[0], edge.source, further, position, hop + 1)
                found.append((edge_type, begin + pick, limit - time, behind))
        return found

    def _row(self, edge_type: EdgeType, node: int) -> tuple[int, list[Edge]]:
        csc = self.graph.csc(edge_type)
        begin, end = (int(at) for at in csc.indptr[node : node + 2])
        of_edges, of_nodes = (self.graph.columns.get(t, {}) for t in (edge_type, edge_type[0]))
        row = []
        for at in range(begin, end):
            source = int(csc.indices[at])
            times = [int(of["time"][i]) for of, i in ((of_edges, at), (of_nodes, source)) if "time" in of]
            weight = float(of_edges["weight"][at]) if "weight" in of_edges else None
            row.append(Edge(source, max(times, default=None), weight))
        return begin, row
