"""OGB's node sets: their folders as tables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy.typing as npt

from khop.graph.tables import EdgeChunks, NodeTable
from khop.importing.sets.csv_numbers import csv_numbers
from khop.importing.sets.csv_table import csv_table
from khop.importing.sets.npz_array import NpzArray
from khop.importing.sets.ogb_labels import ogb_labels
from khop.importing.sets.ogb_raw import Directions, OgbRaw
from khop.importing.sets.ogb_sets import OgbSet
from khop.importing.sets.ogb_splits import ogb_splits
from khop.importing.sets.ogb_typed import typed_edges, typed_nodes
from khop.importing.sets.scratch import Scratch
from khop.importing.sets.set_graph import EDGE, NODE, SetGraph
from khop.schema import NodeType

LABEL = "label"


def ogb_nodes(ogb: OgbSet, folder: Path, directions: Directions, scratch: Scratch) -> SetGraph:
    """Read a node set. `directions` adds opposite edges to those of the set itself.

    With several node types the opposite edges are types of their own, named rev_RELATION.
    """
    if ogb.kind == "typed":
        return _typed(ogb, folder, directions, scratch)
    both: Directions = "both directions" if "both directions" in (ogb.edges, directions) else "as stored"
    raw = OgbRaw.read(folder / "raw", scratch, both)
    splits = ogb_splits(folder / "split" / ogb.split)
    nodes = NodeTable(raw.num_nodes, dict(raw.columns), splits)
    labels = _labels(ogb, folder / "raw", raw.num_nodes)
    return SetGraph(
        ogb.name, {NODE: labeled(nodes, labels, ogb)}, {EDGE: EdgeChunks(raw.edges())}, {NODE: task(ogb)}
    )


def labeled(table: NodeTable, labels: npt.NDArray[Any], ogb: OgbSet) -> NodeTable:
    """Return the table with a column of labels."""
    classes = {LABEL: ogb.num_classes} if ogb.num_classes else {}
    return NodeTable(table.count, {**table.columns, LABEL: labels}, table.splits, classes)


def task(ogb: OgbSet) -> str:
    """Return the kind of the task of a node set's labels."""
    return "node-classification" if ogb.num_classes else "multi-label"


def _labels(ogb: OgbSet, raw: Path, count: int) -> npt.NDArray[Any]:
    path = raw / "node-label.npz"
    if path.is_file():
        return ogb_labels(NpzArray.of(path, "node_label").whole(), ogb.num_classes, path)
    path = raw / "node-label.csv.gz"
    return ogb_labels(csv_numbers(path, count), ogb.num_classes, path)


def _typed(ogb: OgbSet, folder: Path, directions: Directions, scratch: Scratch) -> SetGraph:
    raw, split = folder / "raw", folder / "split" / ogb.split
    nodes, labels = typed_nodes(raw, scratch), {}
    for node_type in _types_with(raw / "nodetype-has-label.csv.gz"):
        path = raw / "node-label" / node_type / "node-label.csv.gz"
        values = ogb_labels(csv_numbers(path, nodes[node_type].count), ogb.num_classes, path)
        nodes[node_type] = labeled(nodes[node_type], values, ogb)
        labels[node_type] = task(ogb)
    for node_type in _types_with(split / "nodetype-has-split.csv.gz"):
        table = nodes[node_type]
        parts = ogb_splits(split / node_type)
        nodes[node_type] = NodeTable(table.count, table.columns, parts, table.num_classes)
    return SetGraph(ogb.name, nodes, typed_edges(raw, scratch, directions), labels)


def _types_with(path: Path) -> list[NodeType]:
    """Return the node types whose flag is True in a file with a header of types."""
    return [node_type for node_type, values in csv_table(path).items() if values[0].lower() == "true"]
