"""A standard set as it was read: tables of nodes and edges for `write_graph`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from khop.graph.build import write_graph
from khop.graph.progress import ProgressCallback
from khop.graph.standard_set import DOCUMENT
from khop.graph.tables import EdgeChunks, EdgeTable, NodeTable
from khop.importing.sets.published import PUBLISHED
from khop.schema import EdgeType, NodeType

NODE: NodeType = "node"
EDGE: EdgeType = (NODE, "to", NODE)


@dataclass(frozen=True)
class SetGraph:
    """Tables of a set, and the record of it that its graph folder keeps."""

    name: str
    nodes: Mapping[NodeType, NodeTable]
    edges: Mapping[EdgeType, EdgeTable | EdgeChunks]
    labels: Mapping[NodeType, str] = field(default_factory=dict)  # the task of each label

    def write(self, out: Path, memory: int | None, threads: int, notice: ProgressCallback | None) -> None:
        """Write the graph folder, complete or not at all."""
        published = PUBLISHED.get(self.name)
        record = {
            "name": self.name,
            "labels": dict(self.labels),
            "published": None if published is None else published.record(),
        }
        content = json.dumps(record, indent=1).encode() + b"\n"
        write_graph(
            out, self.nodes, self.edges, memory=memory, threads=threads, documents={DOCUMENT: content},
            notice=notice,
        )  # fmt: skip

    def size(self) -> str:
        """Return the numbers of nodes in words."""
        counts = ((t, table.count or 0) for t, table in self.nodes.items())
        return ", ".join(f"{count:,} {node_type}" for node_type, count in counts)
