"""Import of a DGL CSVDataset: all steps of `khop import dgl:FOLDER`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from khop.datasets.importers import ImportContext
from khop.graph.atomic import refuse_existing
from khop.graph.progress import ProgressCallback
from khop.graph.tables import EdgeTable, NodeTable
from khop.importing.sets.dgl_meta import DglEdges, DglMeta, DglNodes
from khop.importing.sets.dgl_table import Columns, dgl_table
from khop.importing.sets.memory_budget import memory_budget
from khop.importing.sets.options import DglOptions
from khop.importing.sets.set_graph import SetGraph
from khop.kernels.id_table import id_table
from khop.schema import EdgeType, NodeType

LABEL, SPLIT = "label", "split"
_MASKS = {"train": "train_mask", "val": "val_mask", "test": "test_mask"}


@dataclass(frozen=True)
class DglImporter:
    """An import of the CSV files of a folder."""

    folder: Path
    context: ImportContext

    @property
    def name(self) -> str:
        """Name of the folder."""
        return self.folder.name

    def write(self, out: Path, notice: ProgressCallback | None = None) -> str:
        """Write the graph folder; return its counts and notes."""
        refuse_existing(out)
        meta = DglMeta.read(self.folder / "meta.yaml")
        nodes: dict[NodeType, NodeTable] = {}
        for part in meta.node_data:
            if part.ntype in nodes:
                raise ValueError(f"{self.folder / 'meta.yaml'}: node type {part.ntype!r} is given twice")
            nodes[part.ntype] = self._nodes(part, meta.separator)
        edges: dict[EdgeType, EdgeTable] = {}
        for table in meta.edge_data:
            if table.etype in edges:
                raise ValueError(f"{self.folder / 'meta.yaml'}: edge type {table.etype} is given twice")
            edges[table.etype] = self._edges(table, meta.separator, nodes)
        graph = SetGraph(meta.dataset_name, nodes, edges)
        return graph.write(out, memory_budget(self.context), self.context.threads, notice)

    def _nodes(self, part: DglNodes, separator: str) -> NodeTable:
        path = self.folder / part.file_name
        columns = dgl_table(path, separator, part.graph_id_field)
        ids = _taken(columns, part.node_id_field, path)
        splits = {split: columns.pop(mask).astype(bool) for split, mask in _MASKS.items() if mask in columns}
        splits = {split: mask for split, mask in splits.items() if mask.any()}
        labels = columns.get(LABEL)
        is_class = labels is not None and labels.ndim == 1 and labels.dtype == np.int64 and len(labels) > 0
        classes = {LABEL: int(labels.max()) + 1} if labels is not None and is_class else {}
        return NodeTable(len(ids), dict(columns), splits, classes, ids)

    def _edges(self, part: DglEdges, separator: str, nodes: dict[NodeType, NodeTable]) -> EdgeTable:
        path = self.folder / part.file_name
        columns = dgl_table(path, separator, part.graph_id_field)
        ends = [
            _rows(nodes, end, _taken(columns, name, path), f"{path}, column {name}")
            for end, name in ((part.etype[0], part.src_id_field), (part.etype[2], part.dst_id_field))
        ]
        masks = [columns.pop(mask).astype(bool) if mask in columns else None for mask in _MASKS.values()]
        if any(mask is not None for mask in masks):
            split = np.full(len(ends[0]), -1, np.int8)
            for number, mask in enumerate(masks):
                if mask is not None:
                    split[mask] = number
            columns[SPLIT] = split
        return EdgeTable(ends[0], ends[1], dict(columns))


def dgl_importer(options: DglOptions, context: ImportContext) -> DglImporter:
    """Make the importer."""
    return DglImporter(context.folder / options.name, context)


def _taken(columns: Columns, name: str, path: Path) -> npt.NDArray[np.int64]:
    if name not in columns:
        raise ValueError(f"{path}: has no column {name!r}, but {', '.join(columns)}; meta.yaml names it")
    ids = columns.pop(name)
    if ids.ndim != 1 or not np.issubdtype(ids.dtype, np.integer):
        raise ValueError(f"{path}, column {name}: ids are whole numbers")
    return ids.astype(np.int64)


def _rows(
    nodes: dict[NodeType, NodeTable], node_type: NodeType, ids: npt.NDArray[Any], where: str
) -> npt.NDArray[np.int64]:
    if node_type not in nodes:
        raise ValueError(f"{where}: no node type {node_type!r}; there are {', '.join(nodes)}")
    known: Any = nodes[node_type].ids
    table = id_table("int64", len(known))
    table.append(known)
    rows: npt.NDArray[np.int64] = np.asarray(table.find(ids)).astype(np.int64)
    if (rows < 0).any():
        at = int(np.argmax(rows < 0))
        raise ValueError(
            f"{where}, row {at + 2}: no {node_type!r} node has the id {ids[at]}; add it or drop the row"
        )
    return rows
