"""Import of a file of edges, an edge list or GraphML: all steps of `khop import edges:FILE`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from khop.datasets.importers import ImportContext
from khop.graph.atomic import refuse_existing
from khop.graph.progress import ProgressCallback
from khop.graph.tables import EdgeTable, NodeTable
from khop.importing.sets.edge_list import edge_list
from khop.importing.sets.graphml import graphml
from khop.importing.sets.memory_budget import memory_budget
from khop.importing.sets.options import EdgeFileOptions
from khop.importing.sets.set_graph import EDGE, NODE, SetGraph
from khop.schema import EdgeType

BACK: EdgeType = (NODE, "rev_to", NODE)
_SUFFIXES = (".gz", ".graphml", ".txt", ".csv", ".tsv", ".edges", ".el")


@dataclass(frozen=True)
class EdgeFileImporter:
    """An import of one file."""

    path: Path
    undirected: bool
    context: ImportContext

    @property
    def name(self) -> str:
        """Name of the file without its endings."""
        name = self.path.name
        for suffix in _SUFFIXES:
            name = name.removesuffix(suffix)
        return name

    def write(self, out: Path, notice: ProgressCallback | None = None) -> str:
        """Write the graph folder; return its size in words. Nodes are numbered as they first appear."""
        refuse_existing(out)
        if not self.path.is_file():
            raise ValueError(f"{self.path}: no such file; give an edge list or a GraphML file")
        name = self.path.name.lower().removesuffix(".gz")
        read = graphml(self.path) if name.endswith((".graphml", ".xml")) else edge_list(self.path)
        edges = {EDGE: EdgeTable(read.sources, read.destinations, dict(read.edge_columns))}
        if self.undirected or read.direction == "undirected":
            edges[BACK] = EdgeTable(read.destinations, read.sources, dict(read.edge_columns), EDGE)
        node = NodeTable(len(read.ids), dict(read.node_columns), ids=read.ids)
        graph = SetGraph(self.name, {NODE: node}, edges)
        graph.write(out, memory_budget(self.context), self.context.threads, notice)
        return graph.size()


def edge_file_importer(options: EdgeFileOptions, context: ImportContext) -> EdgeFileImporter:
    """Make the importer."""
    return EdgeFileImporter(context.folder / options.name, options.undirected, context)
