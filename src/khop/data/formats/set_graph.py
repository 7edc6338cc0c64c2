"""A public dataset as tables for `write_graph`, with its published results and suggested settings."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import chain, count
from pathlib import Path

from khop.data.importers import ImportContext
from khop.graph.atomic import ProgressCallback
from khop.graph.build import write_graph
from khop.graph.folder import STANDARD_SET, open_folder
from khop.graph.tables import EdgeChunks, EdgeTable, NodeTable
from khop.kernels.memory import free_memory_bytes
from khop.schema import EdgeType, NodeType

NODE_SOURCE = "https://ogb.stanford.edu/docs/leader_nodeprop/"
Settings = Mapping[str, float | int | list[int]]
LINK_SOURCE = "https://ogb.stanford.edu/docs/leader_linkprop/"
SAINT_SOURCE = "https://arxiv.org/abs/1907.04931"  # GraphSAINT
SPLITS_SOURCE = "https://arxiv.org/abs/2106.10934"  # GRAND, table 2, row GS-mean: 100 random splits


@dataclass(frozen=True)
class Published:
    """A published result, and suggested settings of a run."""

    metric: str
    value: str  # as published, on the test split
    model: str
    source: str
    settings: Settings = field(default_factory=dict)

    def record(self) -> dict[str, object]:
        """Return the result as JSON."""
        return asdict(self)

    def __str__(self) -> str:
        return f"{self.metric} {self.value} on test by {self.model} ({self.source})"


_SAGE: Settings = {"hidden": 256, "dropout": 0.5, "fanouts": [15, 10, 5], "epochs": 20, "batch_size": 1024}
_PLAIN: Settings = {**_SAGE, "learning_rate": 0.003}
_MAG: Settings = {**_PLAIN, "hidden": 64, "fanouts": [25, 20], "epochs": 3, "learning_rate": 0.01}
_LINKS: Settings = {"hidden": 256, "fanouts": [15, 10], "epochs": 20}

PUBLISHED: Mapping[str, Published] = {
    "ogbn-arxiv": Published("accuracy", "0.7149 ± 0.0027", "GraphSAGE", NODE_SOURCE, _PLAIN),
    "ogbn-products": Published(
        "accuracy", "0.7870 ± 0.0036", "GraphSAGE with neighbor sampling", NODE_SOURCE, _PLAIN
    ),
    "ogbn-proteins": Published("ROC-AUC", "0.7768 ± 0.0020", "GraphSAGE", NODE_SOURCE, _PLAIN),
    "ogbn-papers100M": Published("accuracy", "0.6329 ± 0.0019", "SGC", NODE_SOURCE, _PLAIN),
    "ogbn-mag": Published("accuracy", "0.4678 ± 0.0067", "R-GCN with neighbor sampling", NODE_SOURCE, _MAG),
    "ogbl-ppa": Published("Hits@100", "0.1655 ± 0.0240", "GraphSAGE", LINK_SOURCE, _LINKS),
    "ogbl-collab": Published("Hits@50", "0.4810 ± 0.0081", "GraphSAGE", LINK_SOURCE, _LINKS),
    "ogbl-ddi": Published("Hits@20", "0.5390 ± 0.0474", "GraphSAGE", LINK_SOURCE, _LINKS),
    "ogbl-citation2": Published(
        "MRR", "0.8044 ± 0.0010", "GraphSAGE with neighbor sampling", LINK_SOURCE, _LINKS
    ),
    "ogbl-wikikg2": Published("MRR", "0.4027 ± 0.0027", "ComplEx", LINK_SOURCE, _LINKS),
    "ogbl-biokg": Published("MRR", "0.8095 ± 0.0007", "ComplEx", LINK_SOURCE, _LINKS),
    "ogbl-vessel": Published("ROC-AUC", "0.4989 ± 0.0678", "GraphSAGE", LINK_SOURCE, _LINKS),
    "Flickr": Published("F1 (micro)", "0.511 ± 0.001", "GraphSAINT with random walks", SAINT_SOURCE),
    "Reddit": Published("F1 (micro)", "0.966 ± 0.001", "GraphSAINT with random walks", SAINT_SOURCE),
    "Yelp": Published("F1 (micro)", "0.653 ± 0.003", "GraphSAINT with random walks", SAINT_SOURCE),
    "AmazonProducts": Published("F1 (micro)", "0.815 ± 0.001", "GraphSAINT with random walks", SAINT_SOURCE),
    "Amazon-Computers": Published("accuracy", "0.824 ± 0.018", "GraphSAGE", SPLITS_SOURCE),
    "Amazon-Photo": Published("accuracy", "0.914 ± 0.013", "GraphSAGE", SPLITS_SOURCE),
    "Coauthor-CS": Published("accuracy", "0.913 ± 0.028", "GraphSAGE", SPLITS_SOURCE),
}


def memory_budget(context: ImportContext) -> int:
    """Return the budget of an import in bytes: as given, or half of the free memory."""
    return free_memory_bytes() // 2 if context.memory is None else context.memory


NODE: NodeType = "node"
EDGE: EdgeType = (NODE, "to", NODE)


@dataclass(frozen=True)
class SetGraph:
    """Tables of a set, and its record in the graph folder."""

    name: str
    nodes: Mapping[NodeType, NodeTable]
    edges: Mapping[EdgeType, EdgeTable | EdgeChunks]
    labels: Mapping[NodeType, str] = field(default_factory=dict)  # the task of each label
    notes: Sequence[str] = ()  # about omitted or renamed columns

    def write(self, out: Path, context: ImportContext, notice: ProgressCallback | None) -> str:
        """Write the graph folder atomically. Return its counts, and a line for each note."""
        published = PUBLISHED.get(self.name)
        record = {
            "name": self.name,
            "labels": dict(self.labels),
            "published": None if published is None else published.record(),
        }
        content = json.dumps(record, indent=1).encode() + b"\n"
        write_graph(
            out, self.nodes, self.edges, memory=memory_budget(context), threads=context.threads,
            documents={STANDARD_SET: content}, notice=notice,
        )  # fmt: skip
        folder = open_folder(out)
        nodes = ", ".join(f"{folder.num_nodes(node_type):,} {node_type}" for node_type in self.nodes)
        edges = [f"{folder.num_edges(t):,} {' '.join(t)}" for t in folder.schema.edge_types]
        return "\n".join([f"{nodes}; {', '.join(edges) or 'no edges'}", *self.notes])


def stored_name(name: str, taken: Collection[str] = ()) -> str:
    """Return a name valid in a graph folder: letters, digits and single underscores."""
    short = re.sub(r"[^A-Za-z0-9.-]+", "_", name).strip("._-") or "column"
    numbered = (f"{short}.{at}" for at in count(2))
    return next(each for each in chain([short], numbered) if each not in taken)
