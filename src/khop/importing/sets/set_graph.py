"""A standard set as it was read: tables of nodes and edges for `write_graph`."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from khop.datasets.importers import ImportContext
from khop.graph.build import write_graph
from khop.graph.folder import open_folder
from khop.graph.progress import ProgressCallback
from khop.graph.standard_set import DOCUMENT
from khop.graph.tables import EdgeChunks, EdgeTable, NodeTable
from khop.importing.sets.published import PUBLISHED
from khop.kernels.memory import free_memory_bytes
from khop.schema import EdgeType, NodeType


def memory_budget(context: ImportContext) -> int:
    """Return the budget of an import in bytes: as given, or half of what is free."""
    return free_memory_bytes() // 2 if context.memory is None else context.memory


NODE: NodeType = "node"
EDGE: EdgeType = (NODE, "to", NODE)


@dataclass(frozen=True)
class SetGraph:
    """Tables of a set, and the record of it that its graph folder keeps."""

    name: str
    nodes: Mapping[NodeType, NodeTable]
    edges: Mapping[EdgeType, EdgeTable | EdgeChunks]
    labels: Mapping[NodeType, str] = field(default_factory=dict)  # the task of each label
    notes: Sequence[str] = ()  # of what was left out or renamed

    def write(self, out: Path, memory: int | None, threads: int, notice: ProgressCallback | None) -> str:
        """Write the graph folder, complete or not at all. Return its counts, and a line for each note."""
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

        folder = open_folder(out)
        nodes = ", ".join(f"{folder.num_nodes(node_type):,} {node_type}" for node_type in self.nodes)
        edges = [f"{folder.num_edges(t):,} {' '.join(t)}" for t in folder.schema.edge_types]
        return "\n".join([f"{nodes}; {', '.join(edges) or 'no edges'}", *self.notes])


def stored_name(name: str, taken: Collection[str] = ()) -> str:
    """Return a name as a graph folder stores it: letters, digits and single underscores."""
    short = re.sub(r"[^A-Za-z0-9.-]+", "_", name).strip("._-") or "column"
    return next(n for n in (short, *(f"{short}.{at}" for at in range(2, 1 << 20))) if n not in taken)
