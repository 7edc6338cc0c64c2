"""Import of the Illinois Graph Benchmark: all steps of `khop import igb:SIZE`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from khop.datasets.importers import ImportContext
from khop.graph.atomic import refuse_existing
from khop.graph.progress import ProgressCallback
from khop.graph.tables import EdgeChunks, EdgeTable, NodeTable
from khop.importing.read_spec import nearest
from khop.importing.sets.fetched import fetched
from khop.importing.sets.igb_edges import igb_edges
from khop.importing.sets.igb_sets import IGB_SETS, NODE_TYPES, IgbSet
from khop.importing.sets.memory_budget import memory_budget
from khop.importing.sets.mirrored import mirrored
from khop.importing.sets.npy_array import npy_array
from khop.importing.sets.ogb_labels import ogb_labels
from khop.importing.sets.options import IgbOptions
from khop.importing.sets.set_folder import set_folder
from khop.importing.sets.set_graph import SetGraph
from khop.schema import EdgeType

PAPER, WIDTH = "paper", 1024
LABEL_FILES = {19: "node_label_19.npy", 2983: "node_label_2K.npy"}


@dataclass(frozen=True)
class IgbImporter:
    """An import of one size of the benchmark."""

    igb: IgbSet
    root: Path | None
    mirror: str | None
    num_classes: int
    context: ImportContext

    @property
    def name(self) -> str:
        """Name of the set."""
        return self.igb.name

    def write(self, out: Path, notice: ProgressCallback | None = None) -> str:
        """Write the graph folder; return its counts. Features are mapped, edges streamed."""
        refuse_existing(out)
        graph = self._read(self._folder(notice))
        return graph.write(out, memory_budget(self.context), self.context.threads, notice)

    def _folder(self, notice: ProgressCallback | None) -> Path:
        size, source = self.igb.size, self.igb.url or "the benchmark's site"
        root = self.root
        if root is None:
            if self.igb.url is None:
                raise ValueError(f"igb:{self.name}: khop does not download it; give its folder by --root")
            root = fetched(mirrored(self.igb.url, self.mirror), self.context, notice, self.igb.checksum)
        names = (size, f"{size}/processed", "processed", f"{root.name}/{size}/processed")
        return set_folder(root, names, f"{PAPER}/node_feat.npy", source)

    def _read(self, folder: Path) -> SetGraph:
        nodes: dict[str, NodeTable] = {}
        for node_type in NODE_TYPES if self.igb.kind == "typed" else (PAPER,):
            path = folder / node_type / "node_feat.npy"
            if path.is_file():
                features = npy_array(path, WIDTH)
                nodes[node_type] = NodeTable(len(features), {"x": features})
        nodes[PAPER] = self._labeled(nodes[PAPER], folder / PAPER)
        edges: dict[EdgeType, EdgeTable | EdgeChunks] = dict(igb_edges(folder, nodes))
        return SetGraph(f"igb-{self.name}", nodes, edges)

    def _labeled(self, table: NodeTable, folder: Path) -> NodeTable:
        """Add labels and the benchmark's split: 60, 20 and 20 percent of labeled papers, in order."""
        path = folder / LABEL_FILES[self.num_classes]
        labels = ogb_labels(npy_array(path, 1).reshape(-1, 1), self.num_classes, path)
        assert table.count is not None
        if len(labels) > table.count:
            raise ValueError(
                f"{path}: has {len(labels):,} labels, and there are {table.count:,} papers; download it again"
            )
        labels = np.concatenate([labels, np.full(table.count - len(labels), -1)])
        labeled = self.igb.num_labeled.get(self.num_classes, table.count)
        train, val = int(labeled * 0.6), int(labeled * 0.2)
        splits = {
            "train": np.arange(train),
            "val": np.arange(train, train + val),
            "test": np.arange(train + val, labeled),
        }
        return NodeTable(table.count, {**table.columns, "label": labels}, splits, {"label": self.num_classes})


def igb_importer(options: IgbOptions, context: ImportContext) -> IgbImporter:
    """Make the importer; ValueError for a size that does not exist."""
    if options.name not in IGB_SETS:
        raise ValueError(f"igb:{options.name}: no such set; {nearest(options.name, list(IGB_SETS))}")
    root = None if options.root is None else context.folder / options.root
    return IgbImporter(IGB_SETS[options.name], root, options.mirror, int(options.classes), context)
