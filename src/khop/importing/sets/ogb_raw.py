"""The raw folder of an OGB set with one node type: CSV files, or data.npz."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from khop.graph.tables import EdgeTable
from khop.importing.sets.csv_blocks import csv_blocks
from khop.importing.sets.csv_numbers import csv_numbers
from khop.importing.sets.npz_array import NpzArray
from khop.importing.sets.rows_together import rows_together
from khop.importing.sets.scratch import Scratch

Numbers = npt.NDArray[Any]
Directions = Literal["as stored", "both directions"]
FEATURES = "x"
_EDGES_AT_ONCE = 1 << 20
_SPECIES = "species.csv.gz"  # of ogbn-proteins; other node columns are named node_*


@dataclass(frozen=True)
class OgbRaw:
    """Nodes and edges of a set."""

    num_nodes: int
    columns: Mapping[str, Numbers]  # of nodes
    edges: Callable[[], Iterator[EdgeTable]]

    @classmethod
    def read(cls, raw: Path, scratch: Scratch, edges: Directions) -> OgbRaw:
        """Read node columns; edges are read later, block by block."""
        opened = _from_npz if (raw / "data.npz").is_file() else _from_csv
        return opened(raw, scratch, edges)


def csv_columns(
    folder: Path, kind: Literal["node", "edge"], rows: int, scratch: Scratch
) -> dict[str, Numbers]:
    """Return the columns of nodes or edges in CSV files: KIND-feat as x, KIND_year as year."""
    found: dict[str, Numbers] = {}
    for path in sorted(folder.glob(f"{kind}[-_]*.csv.gz")):
        name = path.name.removesuffix(".csv.gz")[len(kind) + 1 :]
        if name != "label":
            found[FEATURES if name == "feat" else name] = flat(csv_numbers(path, rows, scratch))
    if kind == "node" and (folder / _SPECIES).is_file():
        found["species"] = flat(csv_numbers(folder / _SPECIES, rows, scratch))
    return found


def flat(values: Numbers) -> Numbers:
    """Return a column of one number per row as a vector."""
    return values[:, 0] if values.ndim == 2 and values.shape[1] == 1 else values


def only_count(path: Path) -> int:
    """Return the number of nodes or edges in a file that lists it for each graph of a set."""
    counts = csv_numbers(path)[:, 0]
    if len(counts) != 1:
        raise ValueError(f"{path}: the set has {len(counts)} graphs, and sets of one graph are read")
    return int(counts[0])


def edge_table(ends: tuple[Numbers, Numbers], columns: Mapping[str, Numbers], edges: Directions) -> EdgeTable:
    """Make a table, with each edge followed by its opposite if both directions are asked for."""
    if edges == "as stored":
        return EdgeTable(*ends, columns=columns)
    sources, destinations = ends
    twice = {name: np.repeat(column, 2, axis=0) for name, column in columns.items()}
    pair = np.stack([sources, destinations], axis=1)
    return EdgeTable(pair.reshape(-1), pair[:, ::-1].reshape(-1), columns=twice)


def _from_csv(raw: Path, scratch: Scratch, edges: Directions) -> OgbRaw:
    num_nodes = only_count(raw / "num-node-list.csv.gz")
    num_edges = only_count(raw / "num-edge-list.csv.gz")
    columns = csv_columns(raw, "node", num_nodes, scratch)
    return OgbRaw(num_nodes, columns, partial(csv_edges, raw, num_edges, scratch, edges))


def csv_edges(folder: Path, num_edges: int, scratch: Scratch, edges: Directions) -> Iterator[EdgeTable]:
    """Yield the edges of edge.csv.gz with their columns."""
    columns, first, path = csv_columns(folder, "edge", num_edges, scratch), 0, folder / "edge.csv.gz"
    for block in csv_blocks(path, "int64"):
        if block.shape[1] != 2:
            raise ValueError(f"{path}: has {block.shape[1]} columns, and 2 are expected; download it again")
        rows = slice(first, first + len(block))
        of_block = {name: column[rows] for name, column in columns.items()}
        yield edge_table((block[:, 0], block[:, 1]), of_block, edges)
        first += len(block)
    if first != num_edges:
        raise ValueError(
            f"{path}: has {first:,} edges, num-edge-list says {num_edges:,}; download the set again"
        )


def _from_npz(raw: Path, scratch: Scratch, edges: Directions) -> OgbRaw:
    path = raw / "data.npz"
    counts = NpzArray.of(path, "num_nodes_list").whole()
    if len(counts) != 1:
        raise ValueError(f"{path}: the set has {len(counts)} graphs, and sets of one graph are read")
    columns = {}
    for name in NpzArray.names(path):
        if name.startswith("node_"):
            given = NpzArray.of(path, name)
            made = scratch.filled(given.shape, given.dtype, given.blocks(), f"{path}, array {name}")
            columns[_column(name)] = flat(made)
    return OgbRaw(int(counts[0]), columns, partial(_npz_edges, path, edges))


def _npz_edges(path: Path, edges: Directions) -> Iterator[EdgeTable]:
    """Yield edges from two cursors in edge_index: the sources come first, then the destinations."""
    index = NpzArray.of(path, "edge_index")
    if len(index.shape) != 2 or index.shape[0] != 2:
        raise ValueError(f"{path}, array edge_index: has shape {index.shape}, and (2, edges) is expected")
    count = index.shape[1]
    ends = [index.numbers(row * count, count, _EDGES_AT_ONCE) for row in range(2)]
    names = [name for name in NpzArray.names(path) if name.startswith("edge_") and name != "edge_index"]
    columns = [NpzArray.of(path, name).blocks() for name in names]
    for sources, destinations, *values in rows_together([*ends, *columns], str(path)):
        of_block = {_column(name): flat(of) for name, of in zip(names, values, strict=True)}
        yield edge_table((sources, destinations), of_block, edges)


def _column(name: str) -> str:
    short = name.partition("_")[2]
    return FEATURES if short == "feat" else short
