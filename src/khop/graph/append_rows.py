"""A graph folder with new rows: bit for bit the folder that all rows at once would give."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from khop.graph import layout
from khop.graph.added_rows import AddedNodes, AddedRows
from khop.graph.append_edges import append_edges
from khop.graph.append_ids import append_ids
from khop.graph.checked_rows import Array, CheckedRows
from khop.graph.documents import documents_of, write_documents
from khop.graph.folder import ORIGINAL_ID, GraphFolder
from khop.graph.folder_writer import FolderWriter
from khop.graph.manifest import EdgeEntry, Manifest, NodeEntry
from khop.graph.merged_rows import at_end
from khop.graph.npy import STORED
from khop.graph.shared_arrays import share_files

UNKNOWN, UNKNOWN_BYTE = -1, 255  # labels of nodes whose classes are unknown
LABEL = "label"  # the column of labels of imported graphs
Job = Callable[[], None]  # writes one array


@dataclass(frozen=True, eq=False)
class Appending:
    """One graph with new rows under construction. Arrays without new rows are shared with the graph."""

    base: GraphFolder
    added: AddedRows
    out: FolderWriter
    split: str = ""  # new nodes with known labels join this split; "": none
    memory: int = 1 << 30  # for an index of ids that has to be made anew
    threads: int = 1

    def write(self) -> Manifest:
        """Write all arrays and documents, and return their description; graph.json is left to the caller."""
        check_appendable(self.base)
        manifest = self.base.manifest
        jobs: list[Job] = []
        nodes = tuple(self._nodes(entry, jobs) for entry in manifest.nodes)
        edges = tuple(self._edges(entry, nodes, jobs) for entry in manifest.edges)
        with ThreadPoolExecutor(self.threads) as pool:
            for done in [pool.submit(job) for job in jobs]:
                done.result()
        documents = write_documents(self.out.folder, documents_of(self.base.path, self.base.documents))
        # Jobs end in any order; entries have the order of the types.
        files = [file for entry in nodes for file in entry.arrays()]
        files += [file for entry in edges for file in entry.arrays(0)]
        ordered = {file: self.out.arrays[file] for file in files}
        return replace(manifest, nodes=nodes, edges=edges, arrays=ordered, documents=documents)

    def _nodes(self, entry: NodeEntry, jobs: list[Job]) -> NodeEntry:
        count, new = entry.count, self.added.nodes.get(entry.type)
        splits = [layout.node_split(entry.type, name) for name in entry.splits]
        if new is None or new.count == 0:
            share_files(self.base, self.out, entry.arrays())
            return entry
        joined = layout.node_split(entry.type, self.split) if self.split in entry.splits else ""
        share_files(self.base, self.out, [file for file in splits if file != joined])
        if joined:
            ids = count + np.flatnonzero(_is_known(entry, new))
            jobs.append(partial(self.extend, joined, ids))
        for name in entry.columns:
            file = layout.node_column(entry.type, name)
            jobs.append(partial(self.extend, file, self._node_rows(entry, name, new)))
        if entry.ids:
            if new.ids is None:
                raise ValueError(
                    f'node type {entry.type!r}: the new nodes have no ids; leave ids = "none" out'
                )
            jobs.append(partial(append_ids, self.base, entry, new.ids, self.out, self.memory, self.threads))
        return replace(entry, count=count + new.count)

    def _edges(self, entry: EdgeEntry, nodes: tuple[NodeEntry, ...], jobs: list[Job]) -> EdgeEntry:
        counts = {node.type: node.count for node in nodes}
        return append_edges(self.base, entry, self.added, counts, self.out, jobs)

    def extend(self, file: str, added: Array) -> None:
        """Write an array of the graph, and new rows after its rows."""
        rows = CheckedRows(self.base.path / file, self.base.arrays[file])
        merge, dtype = at_end(len(rows), len(added)), self.base.arrays[file].dtype
        self.out.array(file, dtype, (len(merge), *added.shape[1:]), merge.chunks(rows.read, added))

    def _node_rows(self, entry: NodeEntry, name: str, new: AddedNodes) -> Array:
        of_base = self.base.arrays[layout.node_column(entry.type, name)]
        dtype, shape = np.dtype(STORED[of_base.dtype]), of_base.shape[1:]
        if name in new.columns:
            return new.columns[name].astype(dtype, copy=False).reshape(new.count, *shape)
        return np.full((new.count, *shape), unknown_value(entry, name, dtype), dtype)


def unknown_value(entry: NodeEntry, name: str, dtype: np.dtype[Any]) -> float:
    """Return the value of new nodes without such a column: an unknown label, or zero."""
    if name in entry.num_classes:
        return UNKNOWN
    if name != LABEL:
        return 0
    return UNKNOWN_BYTE if dtype == np.uint8 else np.nan if dtype.kind == "f" else 0


def _is_known(entry: NodeEntry, new: AddedNodes) -> Array:
    """Return the new nodes with known labels; all of a type without labels."""
    if LABEL not in entry.columns:
        return np.ones(new.count, bool)
    if LABEL not in new.columns:
        return np.zeros(new.count, bool)
    labels = new.columns[LABEL]
    if labels.dtype == np.uint8:
        labels = labels.reshape(new.count, -1).max(1)
        return np.asarray(labels != UNKNOWN_BYTE)
    known: Array = ~np.isnan(labels) if labels.dtype.kind == "f" else labels != UNKNOWN
    return known


def check_appendable(base: GraphFolder) -> None:
    """Raise ValueError for a part, quantized columns and renumbered nodes: no table can follow them."""
    manifest = base.manifest
    if manifest.part is not None:
        raise ValueError(
            f"{base.path}: is a part of a graph; append to the graph before partitioning, and partition it "
            "again"
        )
    for type_, scales in [
        *((node.type, node.scales) for node in manifest.nodes),
        *((edge.type, edge.scales) for edge in manifest.edges),
    ]:
        if scales:
            raise ValueError(
                f"{base.path}: columns of {type_!r} are quantized; append to the graph before, and "
                "quantize the result"
            )
    for node in manifest.nodes:
        if ORIGINAL_ID in node.columns:
            raise ValueError(
                f"{base.path}: nodes of {node.type!r} were renumbered; append to the graph before that"
            )


def check_split(base: GraphFolder, split: str) -> None:
    """Raise ValueError unless a split exists."""
    if split and split not in base.split_names:
        raise ValueError(f"split {split!r}: {base.path} has {list(base.split_names)}; give one of them")
