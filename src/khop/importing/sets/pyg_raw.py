"""Raw files of torch_geometric's data sets that are plain arrays: Reddit, GraphSAINT's sets, and Shchur's."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from khop.graph.tables import EdgeTable, NodeTable
from khop.importing.sets.raw_arrays import NpzArray, npy_array
from khop.importing.sets.set_graph import EDGE, NODE, SetGraph
from khop.importing.sets.sparse_edges import csr_edges, distinct_edges, undirected_edges

LABEL = "y"
_SHCHUR = "https://github.com/shchur/gnn-benchmark/raw/master/data/npz"
Ids = npt.NDArray[np.int64]


@dataclass(frozen=True)
class PygRaw:
    """The raw files of a set."""

    file: str  # a file that tells the set
    read: Callable[[Path, str], SetGraph]  # (folder, name)
    url: str | None  # of the archive or file; None: the publisher has no plain address


def read_reddit(folder: Path, name: str) -> SetGraph:
    """Read reddit_data.npz and reddit_graph.npz."""
    data = folder / "reddit_data.npz"
    x = NpzArray.of(data, "feature").whole().astype(np.float32)
    part = NpzArray.of(data, "node_types").whole()
    graph = folder / "reddit_graph.npz"
    ends = [NpzArray.of(graph, end).whole().astype(np.int64) for end in ("row", "col")]
    sources, destinations = distinct_edges(ends[0], ends[1], len(x))
    splits = {split: np.flatnonzero(part == at) for at, split in enumerate(("train", "val", "test"), start=1)}
    labels = NpzArray.of(data, "label").whole().astype(np.int64)
    return _graph(name, x, labels, splits, (sources, destinations))


def read_saint(folder: Path, name: str) -> SetGraph:
    """Read adj_full.npz, feats.npy, class_map.json and role.json."""
    path = folder / "adj_full.npz"
    ends = csr_edges(NpzArray.of(path, "indptr").whole(), NpzArray.of(path, "indices").whole())
    x = npy_array(folder / "feats.npy").astype(np.float32)
    role = _json(folder / "role.json")
    splits = {
        split: np.asarray(role[short], np.int64)
        for split, short in (("train", "tr"), ("val", "va"), ("test", "te"))
    }
    return _graph(name, x, _labels(_json(folder / "class_map.json"), len(x)), splits, ends)


def read_shchur(folder: Path, name: str) -> SetGraph:
    """Read NAME.npz: features and edges as sparse matrices. There is no official split."""
    path = folder / PYG_RAW[name].file
    shape = NpzArray.of(path, "attr_shape").whole()
    x = np.zeros(tuple(shape), np.float32)
    rows, columns = csr_edges(
        NpzArray.of(path, "attr_indptr").whole(), NpzArray.of(path, "attr_indices").whole()
    )
    x[rows, columns] = NpzArray.of(path, "attr_data").whole() > 0
    ends = csr_edges(NpzArray.of(path, "adj_indptr").whole(), NpzArray.of(path, "adj_indices").whole())
    labels = NpzArray.of(path, "labels").whole().astype(np.int64)
    return _graph(name, x, labels, {}, undirected_edges(*ends, len(x)))


PYG_RAW: Mapping[str, PygRaw] = {
    "Reddit": PygRaw("reddit_data.npz", read_reddit, "https://data.dgl.ai/dataset/reddit.zip"),
    **{name: PygRaw("adj_full.npz", read_saint, None) for name in ("Flickr", "Yelp", "AmazonProducts")},
    **{
        name: PygRaw(f"{file}.npz", read_shchur, f"{_SHCHUR}/{file}.npz")
        for name, file in (
            ("Amazon-Computers", "amazon_electronics_computers"),
            ("Amazon-Photo", "amazon_electronics_photo"),
            ("Coauthor-CS", "ms_academic_cs"),
            ("Coauthor-Physics", "ms_academic_phy"),
        )
    },
}


def _graph(
    name: str, x: npt.NDArray[Any], labels: npt.NDArray[Any], splits: Mapping[str, Ids], ends: tuple[Ids, Ids]
) -> SetGraph:
    classes = {LABEL: int(labels.max(initial=0)) + 1} if labels.ndim == 1 else {}
    kinds = {NODE: "multi-label"} if labels.ndim == 2 else {}
    node = NodeTable(len(x), {"x": x, LABEL: labels}, dict(splits), classes)
    return SetGraph(name, {NODE: node}, {EDGE: EdgeTable(*ends)}, kinds)


def _labels(classes: Mapping[str, Any], count: int) -> npt.NDArray[Any]:
    """Return the class of each node, -1 for none; or the answers of several classes, 255 for none."""
    first = next(iter(classes.values()), 0)
    if isinstance(first, list):
        answers = np.full((count, len(first)), 255, np.uint8)
        for node, of_node in classes.items():
            answers[int(node)] = of_node
        return answers
    labels = np.full(count, -1, np.int64)
    for node, label in classes.items():
        labels[int(node)] = label
    return labels


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except (FileNotFoundError, ValueError) as error:
        raise ValueError(f"{path}: cannot be read ({error}); give the folder as it was published") from None
