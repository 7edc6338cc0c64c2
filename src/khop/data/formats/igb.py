"""Import of the Illinois Graph Benchmark: `khop import igb:SIZE`."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np

from khop.data.formats.downloads import known_set, root_folder, set_folder
from khop.data.formats.ogb import ogb_labels
from khop.data.formats.raw_arrays import npy_array
from khop.data.formats.set_graph import SetGraph
from khop.data.importers import Igb, ImportContext, NamedImport
from khop.graph.atomic import ProgressCallback
from khop.graph.tables import AsFloat16, EdgeChunks, EdgeTable, NodeTable
from khop.schema import EdgeType, NodeType

_ADDRESS = "https://igb-public-awsopen.s3.amazonaws.com"
NODE_TYPES = ("paper", "author", "institute", "fos", "journal", "conference")


@dataclass(frozen=True)
class IgbSet:
    """One set: `tiny`, or with all its node types `hetero-tiny`."""

    size: str  # folder
    kind: Literal["plain", "typed"]
    md5: str | None = None  # of the archive; None: not published, or there is no archive
    num_labeled: Mapping[int, int] = field(default_factory=dict)  # by number of classes, unless all papers

    @property
    def url(self) -> str | None:
        """Address of the archive; the two large sets are single files of up to 1 TB, without an archive."""
        kind = "homogeneous" if self.kind == "plain" else "heterogeneous"
        name = f"igb-{kind}/igb_{kind}_{self.size}.tar.gz"
        return None if self.md5 is None else f"{_ADDRESS}/{name}"


_MD5 = {
    "tiny": ("34856534da55419b316d620e2d5b21be", "83fbc1091497ff92cf20afe82fae0ade"),
    "small": ("6781c699723529902ace0a95cafe6fe4", "2f42077be60a074aec24f7c60089e1bd"),
    "medium": ("4640df4ceee46851fd18c0a44ddcc622", "7f0df4296eca36553ff3a6a63abbd347"),
}
_FULL = {19: 227_130_858, 2983: 157_675_969}  # labeled papers of 269,346,174

IGB_SETS: Mapping[str, IgbSet] = {
    **{size: IgbSet(size, "plain", md5) for size, (md5, _) in _MD5.items()},
    "large": IgbSet("large", "plain"),
    "full": IgbSet("full", "plain", num_labeled=_FULL),
    **{f"hetero-{size}": IgbSet(size, "typed", md5) for size, (_, md5) in _MD5.items()},
    "hetero-large": IgbSet("large", "typed"),
    "hetero-full": IgbSet("full", "typed", num_labeled=_FULL),
}


_EDGES_AT_ONCE = 1 << 20


def igb_edges(
    folder: Path, node_types: Collection[NodeType], papers: int | None = None
) -> dict[EdgeType, EdgeChunks]:
    """Return the edge types between node types, in alphabetical order, each with its rev_RELATION.

    With a number of papers, citations are one edge type in both directions, see `_both_ways`.
    """
    found: dict[EdgeType, EdgeChunks] = {}
    for path in sorted(folder.glob("*__*__*/edge_index.npy")):
        source, relation, destination = path.parent.name.split("__")
        if {source, destination} <= set(node_types):
            reverse = (destination, f"rev_{relation}", source)
            of_type = EdgeChunks(_chunks(path), reverse)
            if papers is not None and source == destination == PAPER:
                of_type = EdgeChunks(_both_ways(path, papers))
            found[source, relation, destination] = of_type
    if not found:
        raise ValueError(
            f"{folder}: has no SOURCE__RELATION__DESTINATION/edge_index.npy; give another folder"
        )
    return found


def _chunks(path: Path) -> Iterator[EdgeTable]:
    pairs = npy_array(path)
    if pairs.ndim != 2 or pairs.shape[1] != 2:
        raise ValueError(f"{path}: has shape {pairs.shape}, but (edges, 2) is expected; download it again")
    for first in range(0, max(1, len(pairs)), _EDGES_AT_ONCE):
        part = pairs[first : first + _EDGES_AT_ONCE]
        yield EdgeTable(part[:, 0].copy(), part[:, 1].copy())


def _both_ways(path: Path, count: int) -> Iterator[EdgeTable]:
    """Yield edges without self loops and a self loop per node, backward and then forward, as MLPerf does."""
    for is_forward in (False, True):
        for chunk in _chunks(path):
            ends = np.stack([np.asarray(chunk.sources), np.asarray(chunk.destinations)])
            ends = ends[:, ends[0] != ends[1]]
            sources, destinations = ends if is_forward else ends[::-1]
            yield EdgeTable(sources.copy(), destinations.copy())
        for first in range(0, count, _EDGES_AT_ONCE):
            nodes = np.arange(first, min(first + _EDGES_AT_ONCE, count))
            yield EdgeTable(nodes, nodes)


PAPER, WIDTH = "paper", 1024
LABEL_FILES = {19: "node_label_19.npy", 2983: "node_label_2K.npy"}


def igb_importer(options: Igb, context: ImportContext) -> NamedImport:
    """Return the import of one size of the benchmark; ValueError for an unknown size."""
    igb = known_set("igb", options.name, IGB_SETS)

    def write(out: Path, notice: ProgressCallback | None) -> str:
        if igb.url is None and options.root is None:
            raise ValueError(f"igb:{options.name}: khop does not download it; give its folder by --root")
        root, size = root_folder(options, context, igb.url or "", notice, igb.md5), igb.size
        names = (size, f"{size}/processed", "processed", f"{root.name}/{size}/processed")
        source = igb.url or "the benchmark's site"
        folder = set_folder(root, names, [f"{PAPER}/node_feat.npy"], source)
        return _read(igb, folder, options).write(out, context, notice)

    return NamedImport(options.name, write)


def _read(igb: IgbSet, folder: Path, options: Igb) -> SetGraph:
    """Read a set. Features are mapped, edges streamed."""
    nodes: dict[str, NodeTable] = {}
    for node_type in NODE_TYPES if igb.kind == "typed" else (PAPER,):
        path = folder / node_type / "node_feat.npy"
        if path.is_file():
            features = npy_array(path, WIDTH)
            column = AsFloat16(features) if options.dtype == "float16" else features
            nodes[node_type] = NodeTable(len(features), {"x": column})
    nodes[PAPER] = _labeled(nodes[PAPER], folder / PAPER, igb, int(options.classes))
    edges: dict[EdgeType, EdgeTable | EdgeChunks] = dict(
        igb_edges(folder, nodes, nodes[PAPER].count if options.cites == "mlperf" else None)
    )
    return SetGraph(f"igb-{options.name}", nodes, edges)


def _labeled(table: NodeTable, folder: Path, igb: IgbSet, num_classes: int) -> NodeTable:
    """Add labels and the benchmark's split: 60, 20 and 20 percent of labeled papers, in order."""
    path = folder / LABEL_FILES[num_classes]
    labels = ogb_labels(npy_array(path, 1).reshape(-1, 1), num_classes, path)
    assert table.count is not None
    if len(labels) > table.count:
        raise ValueError(
            f"{path}: has {len(labels):,} labels, but there are {table.count:,} papers; download it again"
        )
    labels = np.concatenate([labels, np.full(table.count - len(labels), -1)])
    labeled = igb.num_labeled.get(num_classes, table.count)
    train, val = int(labeled * 0.6), int(labeled * 0.2)
    parts = np.split(np.arange(labeled), [train, train + val])
    splits = dict(zip(("train", "val", "test"), parts, strict=True))
    return NodeTable(table.count, {**table.columns, "label": labels}, splits, {"label": num_classes})
