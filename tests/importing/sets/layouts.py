"""Small folders in the published layouts of standard sets."""

from __future__ import annotations

import gzip
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
import torch


def gz_rows(path: Path, rows: Iterable[Iterable[object]]) -> None:
    """Write a CSV file without a header, as pandas does for OGB."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with gzip.open(path, "wt", encoding="utf-8", newline="") as file:
        for row in rows:
            file.write(",".join("" if value is None else str(value) for value in row) + "\n")


def gz_split(folder: Path, train: list[int], valid: list[int], test: list[int]) -> None:
    for name, ids in (("train", train), ("valid", valid), ("test", test)):
        gz_rows(folder / f"{name}.csv.gz", [[one] for one in ids])


def arxiv(root: Path, name: str = "arxiv", split: str = "time") -> Path:
    """Write a plain node set: 5 nodes, 4 edges, float features, a year, labels of whom one is unknown."""
    raw = root / name / "raw"
    gz_rows(raw / "edge.csv.gz", [[0, 1], [1, 2], [3, 2], [4, 0]])
    gz_rows(raw / "num-node-list.csv.gz", [[5]])
    gz_rows(raw / "num-edge-list.csv.gz", [[4]])
    gz_rows(raw / "node-feat.csv.gz", [[0.1 * row, -row] for row in range(5)])
    gz_rows(raw / "node_year.csv.gz", [[2010 + row] for row in range(5)])
    gz_rows(raw / "node-label.csv.gz", [[4], [0], [39], ["nan"], [1]])
    gz_split(root / name / "split" / split, [0, 1], [2], [4])
    return root / name


def proteins(root: Path) -> Path:
    """Write a set with several answers per node, edge features, and a column of species."""
    raw = root / "proteins" / "raw"
    gz_rows(raw / "edge.csv.gz", [[0, 1], [1, 2]])
    gz_rows(raw / "num-node-list.csv.gz", [[3]])
    gz_rows(raw / "num-edge-list.csv.gz", [[2]])
    gz_rows(raw / "edge-feat.csv.gz", [[0.5, 1.0], [0.25, 2.0]])
    gz_rows(raw / "species.csv.gz", [[3702], [9606], [9606]])
    gz_rows(raw / "node-label.csv.gz", [[1, 0], [0, None], [1, 1]])
    gz_split(root / "proteins" / "split" / "species", [0], [1], [2])
    return root / "proteins"


def mag(root: Path) -> Path:
    """Write a typed node set."""
    raw = root / "mag" / "raw"
    gz_rows(raw / "num-node-dict.csv.gz", [["paper", "author"], [3, 2]])
    gz_rows(raw / "triplet-type-list.csv.gz", [["paper", "cites", "paper"], ["author", "writes", "paper"]])
    for triplet, rows, number in (
        ("author___writes___paper", [[0, 0], [1, 1], [1, 2]], 1),
        ("paper___cites___paper", [[0, 1]], 2),
    ):
        folder = raw / "relations" / triplet
        gz_rows(folder / "edge.csv.gz", rows)
        gz_rows(folder / "num-edge-list.csv.gz", [[len(rows)]])
        gz_rows(folder / "edge_reltype.csv.gz", [[number] for _ in rows])
    gz_rows(raw / "nodetype-has-feat.csv.gz", [["author", "paper"], [False, True]])
    gz_rows(raw / "node-feat" / "paper" / "node-feat.csv.gz", [[1.5, 2], [3, 4], [5, 6]])
    gz_rows(raw / "node-feat" / "paper" / "node_year.csv.gz", [[2017], [2018], [2019]])
    gz_rows(raw / "nodetype-has-label.csv.gz", [["author", "paper"], [False, True]])
    gz_rows(raw / "node-label" / "paper" / "node-label.csv.gz", [[7], [0], [348]])
    split = root / "mag" / "split" / "time"
    gz_rows(split / "nodetype-has-split.csv.gz", [["author", "paper"], [False, True]])
    gz_split(split / "paper", [0], [1], [2])
    return root / "mag"


def papers(root: Path, num_nodes: int = 40, num_edges: int = 300) -> dict[str, np.ndarray]:
    """Write a set as data.npz and node-label.npz, with labels that are mostly NaN; return its arrays."""
    random = np.random.default_rng(0)
    arrays = {
        "edge_index": random.integers(0, num_nodes, (2, num_edges)),
        "node_feat": random.standard_normal((num_nodes, 8)).astype(np.float32),
        "node_year": random.integers(1990, 2020, (num_nodes, 1)),
        "num_nodes_list": np.array([num_nodes]),
        "num_edges_list": np.array([num_edges]),
    }
    raw = root / "papers100M-bin" / "raw"
    raw.mkdir(parents=True)
    np.savez_compressed(raw / "data.npz", **arrays)
    labels = np.full((num_nodes, 1), np.nan, np.float32)
    labels[::4, 0] = random.integers(0, 172, len(labels[::4]))
    np.savez_compressed(raw / "node-label.npz", node_label=labels)
    known = np.arange(0, num_nodes, 4).tolist()
    gz_split(root / "papers100M-bin" / "split" / "time", known[:4], known[4:6], known[6:])
    return arrays | {"node_label": labels}


def links(folder: Path, split: str, parts: Mapping[str, Mapping[str, object]]) -> None:
    """Write the .pt files of a link set, as torch.save does."""
    target = folder / "split" / split
    target.mkdir(parents=True, exist_ok=True)
    for name, values in parts.items():
        torch.save(dict(values), target / f"{name}.pt")
