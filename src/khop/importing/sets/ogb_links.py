"""OGB's link sets: the links of all splits as edges, with the column `split`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from khop.graph.tables import EdgeTable, NodeTable
from khop.importing.sets.csv_numbers import csv_numbers
from khop.importing.sets.ogb_raw import Directions, OgbRaw
from khop.importing.sets.ogb_sets import OgbSet
from khop.importing.sets.ogb_typed import relation_folder, reverse_of, triplets, typed_nodes
from khop.importing.sets.scratch import Scratch
from khop.importing.sets.set_graph import EDGE, NODE, SetGraph
from khop.importing.sets.tensor_file import tensor_file
from khop.schema import EdgeType

SPLIT = "split"  # 0 training, 1 validation, 2 test
_FILES = ("train.pt", "valid.pt", "test.pt")
_ENDS = (("source_node", "target_node"), ("head", "tail"))
_NO_COLUMNS = {"edge", "source_node", "target_node", "head", "tail", "head_type", "tail_type"}
Numbers = npt.NDArray[Any]
Links = Mapping[str, Any]


def ogb_links(ogb: OgbSet, folder: Path, directions: Directions, scratch: Scratch) -> SetGraph:
    """Read a link set. Links of an undirected set are stored once, and as their reverse type rev_RELATION.

    The published negatives are not read: khop draws its own.
    """
    parts = [_part(folder / "split" / ogb.split / name) for name in _FILES]
    if ogb.kind == "typed":
        raw = folder / "raw"
        nodes = dict(typed_nodes(raw, scratch))
        tables = {t: _table(_only(parts, raw, t)) for t in triplets(raw)}
    else:
        raw_set = OgbRaw.read(folder / "raw", scratch, "as stored")
        nodes = {NODE: NodeTable(raw_set.num_nodes, dict(raw_set.columns))}
        tables = {EDGE: _table(parts)}
    if "both directions" in (ogb.edges, directions):
        tables |= {reverse_of(t): _opposite(t, table) for t, table in tables.items()}
    return SetGraph(ogb.name, nodes, tables)


def _part(path: Path) -> Links:
    """Return the links of a split, without its negatives."""
    given = tensor_file(path)
    if not isinstance(given, dict):
        raise ValueError(f"{path}: holds a {type(given).__name__}, and a dict is expected")
    found = {str(name): values for name, values in given.items() if "neg" not in str(name)}
    ends = [pair for pair in _ENDS if set(pair) <= set(found)]
    if "edge" in found:
        edge = np.asarray(found["edge"])
        found["source"], found["destination"] = edge[:, 0], edge[:, 1]
    elif ends:
        found["source"], found["destination"] = (np.asarray(found[name]) for name in ends[0])
    else:
        raise ValueError(f"{path}: has {', '.join(found)}, and no links; download the set again")
    return found


def _only(parts: list[Links], raw: Path, edge_type: EdgeType) -> list[Links]:
    """Return the links of one edge type; the splits of a typed set name relations by number."""
    path = relation_folder(raw, edge_type) / "edge_reltype.csv.gz"
    number = int(csv_numbers(path)[0, 0])
    return [_rows(part, np.asarray(part["relation"]) == number) for part in parts]


def _rows(part: Links, kept: npt.NDArray[np.bool_]) -> Links:
    names = [name for name in part if name not in {"head_type", "tail_type", "relation"}]
    return {name: np.asarray(part[name])[kept] for name in names}


def _table(parts: list[Links]) -> EdgeTable:
    sizes = [len(part["source"]) for part in parts]
    columns: dict[str, Numbers] = {SPLIT: np.repeat(np.arange(3, dtype=np.int8), sizes)}
    for name in parts[0]:
        given = [np.asarray(part[name]) for part in parts if name in part]
        is_column = name not in _NO_COLUMNS | {"source", "destination"}
        if is_column and [len(values) for values in given] == sizes and given[0].dtype.kind in "iuf":
            columns["relation" if name == "reltype" else name] = np.concatenate(given)
    ends = [np.concatenate([part[end] for part in parts]) for end in ("source", "destination")]
    return EdgeTable(ends[0].astype(np.int64), ends[1].astype(np.int64), columns)


def _opposite(edge_type: EdgeType, table: EdgeTable) -> EdgeTable:
    return EdgeTable(table.destinations, table.sources, dict(table.columns), reverse_of=edge_type)
