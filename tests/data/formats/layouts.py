"""Small folders in the published layouts of standard sets."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Mapping
from datetime import datetime
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
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


def reddit(folder: Path) -> None:
    """Write Reddit's arrays: 3 nodes, and 4 edges of which one is there twice."""
    folder.mkdir(parents=True, exist_ok=True)
    np.savez(
        folder / "reddit_data.npz", feature=np.arange(6.0).reshape(3, 2), label=np.array([0, 2, 1]),
        node_types=np.array([1, 2, 3]), node_ids=np.arange(3),
    )  # fmt: skip
    np.savez(
        folder / "reddit_graph.npz", row=np.array([1, 0, 2, 1], np.int32), col=np.array([0, 1, 2, 0], np.int32),
        format=np.array(b"coo"), shape=np.array([3, 3]), data=np.ones(4),
    )  # fmt: skip


def saint(folder: Path, kind: str = "classes") -> None:
    """Write the files of a set of GraphSAINT."""
    folder.mkdir(parents=True, exist_ok=True)
    np.savez(
        folder / "adj_full.npz", data=np.ones(2), indices=np.array([1, 0], np.int32),
        indptr=np.array([0, 1, 1, 2], np.int32), shape=np.array([3, 3]),
    )  # fmt: skip
    np.save(folder / "feats.npy", np.arange(6.0).reshape(3, 2))
    classes = {"0": 1, "2": 0} if kind == "classes" else {"0": [0, 1], "1": [1, 1], "2": [1, 0]}
    (folder / "class_map.json").write_text(json.dumps(classes))
    (folder / "role.json").write_text(json.dumps({"tr": [0], "va": [1], "te": [2]}))


def shchur(path: Path) -> None:
    """Write a set of Shchur's benchmark, with an array of objects that nobody needs."""
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(
        path, attr_data=np.array([2.0, 1.0]), attr_indices=np.array([0, 1]), attr_indptr=np.array([0, 1, 2, 2]),
        attr_shape=np.array([3, 2]), adj_data=np.ones(2), adj_indices=np.array([1, 2]),
        adj_indptr=np.array([0, 1, 1, 2]), adj_shape=np.array([3, 3]), labels=np.array([0, 1, 1]),
        class_names=np.array(["a", None], object),
    )  # fmt: skip


def igb(folder: Path) -> np.ndarray:
    """Write one size of the Illinois Graph Benchmark: 10 papers, 4 authors; return the citations."""
    home = folder / "processed"
    pairs = np.array([[0, 1], [2, 1], [9, 0], [3, 4], [5, 5]])
    links = {"paper__cites__paper": pairs, "paper__written_by__author": np.array([[0, 3], [9, 1]])}
    for name, edges in links.items():
        (home / name).mkdir(parents=True)
        np.save(home / name / "edge_index.npy", edges)
    for node_type, count in (("paper", 10), ("author", 4)):
        (home / node_type).mkdir()
        np.save(home / node_type / "node_feat.npy", np.ones((count, 1024), np.float32))
    np.save(home / "paper" / "node_label_19.npy", np.arange(10, dtype=np.float32) % 19)
    np.save(home / "paper" / "node_label_2K.npy", np.arange(10, dtype=np.float32) * 100)
    return pairs


def csv_dataset(folder: Path) -> None:
    """Write a folder of DGL's CSVDataset."""
    folder.mkdir(parents=True)
    (folder / "meta.yaml").write_text(
        "dataset_name: mini\n"
        "node_data:\n- file_name: nodes.csv\n  ntype: user\n"
        "edge_data:\n- file_name: edges.csv\n  etype: [user, follow, user]\n"
    )
    (folder / "nodes.csv").write_text(
        "node_id,feat,age,label,train_mask,val_mask,test_mask\n"
        '10,"0.5,1.0",31,1,True,False,False\n'
        '20,"1.5,2.0",45,0,False,True,False\n'
        '30,"2.5,3.0",27,1,False,False,True\n'
    )
    (folder / "edges.csv").write_text(
        "src_id,dst_id,weight,train_mask,val_mask,test_mask\n"
        "10,30,0.5,1,0,0\n20,10,1.5,0,1,0\n30,20,2.5,0,0,0\n"
    )


def movielens(folder: Path, layout: str) -> None:
    """Write 20 ratings of 4 users and 5 movies as one of MovieLens's layouts: csv, dat or tab."""
    folder.mkdir(parents=True)
    ratings = [(1 + at % 4, 1 + at % 5, 1 + at % 5, 1000 + at) for at in range(20)]
    titles = ["Café, the (1995)", "B (1996)", "C (1997)", "D (1998)", "E (1999)"]
    if layout == "csv":
        rows = [f"{u},{m},{r}.0,{t}\n" for u, m, r, t in ratings]
        (folder / "ratings.csv").write_text("userId,movieId,rating,timestamp\n" + "".join(rows))
        rows = [f'{at},"{title}",Action|Comedy\n' for at, title in enumerate(titles, start=1)]
        (folder / "movies.csv").write_text("movieId,title,genres\n" + "".join(rows), encoding="utf-8")
    elif layout == "dat":
        (folder / "ratings.dat").write_text("".join(f"{u}::{m}::{r}::{t}\n" for u, m, r, t in ratings))
        rows = [f"{at}::{title}::Action|Comedy\n" for at, title in enumerate(titles, start=1)]
        (folder / "movies.dat").write_text("".join(rows), encoding="latin-1")
    else:
        (folder / "u.data").write_text("".join(f"{u}\t{m}\t{r}\t{t}\n" for u, m, r, t in ratings))
        flags = "|".join("1" if at in (1, 5) else "0" for at in range(19))
        rows = [f"{at}|{title}|01-Jan-1995||http://x|{flags}\n" for at, title in enumerate(titles, start=1)]
        (folder / "u.item").write_text("".join(rows), encoding="latin-1")


def relbench(folder: Path) -> None:
    """Write a database as RelBench's package does: keys are in the metadata of each Parquet file."""
    folder.mkdir(parents=True, exist_ok=True)
    days = [datetime(year, 6, 1) for year in (2003, 2005, 2007, 2011)]
    drivers = pa.table(
        {"driverId": [7, 9], "code": ["HAM", "ALO"], "dob": pa.array(days[:2], pa.timestamp("ns"))}
    )
    results = pa.table({
        "driverId": pa.array([7, 9, None, 8], pa.int64()), "points": [1.0, 2.5, None, 4.0],
        "fast": [True, False, None, True], "date": pa.array(days, pa.timestamp("ns")),
    })  # fmt: skip
    for name, table, links, key, time in (
        ("drivers", drivers, {}, "driverId", None),
        ("results", results, {"driverId": "drivers"}, None, "date"),
    ):
        record = {"fkey_col_to_pkey_table": links, "pkey_col": key, "time_col": time}
        pq.write_table(
            table.replace_schema_metadata({name: json.dumps(value) for name, value in record.items()}),
            folder / f"{name}.parquet",
        )
