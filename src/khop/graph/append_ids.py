"""The users' ids of a node type with new ids after them, and their index."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import chain

import numpy as np

from khop.graph import layout
from khop.graph.checked_rows import Array, CheckedRows
from khop.graph.folder import GraphFolder
from khop.graph.folder_writer import FolderWriter
from khop.graph.manifest import NodeEntry
from khop.graph.merged_rows import MergedRows, at_end, merged_offsets
from khop.graph.node_ids import STRING, ids_in
from khop.graph.npy import STORED
from khop.graph.tables import id_dtype
from khop.graph.write_ids import sliced, write_ids
from khop.kernels.id_table import Keys, Kind, StringKeys
from khop.kernels.key_index import bucket_bits, key_buckets


def append_ids(
    base: GraphFolder, entry: NodeEntry, new: Keys, out: FolderWriter, memory: int, threads: int
) -> None:
    """Write the ids of a node type of the graph, then new ones, with an index of all."""
    count = entry.count + len(new)
    if bucket_bits(count) != bucket_bits(entry.count) or id_dtype(count) != id_dtype(entry.count):
        _write_anew(base, entry, new, out, memory, threads)
        return
    _append_keys(base, entry, new, out)
    bucket, tag = key_buckets(new, bucket_bits(count))
    order = np.argsort(bucket, kind="stable")  # rows ascend within a bucket
    buckets = _rows(base, entry, "buckets")
    ends = buckets.read(0, len(buckets))
    merge = MergedRows(entry.count, ends[bucket[order] + 1])
    offsets = merged_offsets(
        lambda first, last: ends[first:last], len(ends) - 1, bucket[order], len(ends) - 1
    )
    out.array(layout.node_ids(entry.type, "buckets"), "int64", (len(ends),), offsets)
    numbers = (entry.count + order).astype(STORED[id_dtype(count)])
    for name, added in (("rows", numbers), ("tags", tag[order])):
        rows, file = _rows(base, entry, name), layout.node_ids(entry.type, name)
        out.array(file, base.arrays[file].dtype, (count,), merge.chunks(rows.read, added))


def _append_keys(base: GraphFolder, entry: NodeEntry, new: Keys, out: FolderWriter) -> None:
    if not isinstance(new, StringKeys):
        _extend(base, entry, "keys", new, out)
        return
    first, last = int(new.offsets[0]), int(new.offsets[-1])
    num_bytes = base.arrays[layout.node_ids(entry.type, "bytes")].shape[0]
    _extend(base, entry, "offsets", new.offsets[1:] - first + num_bytes, out)
    _extend(base, entry, "bytes", new.data[first:last], out)


def _extend(base: GraphFolder, entry: NodeEntry, name: str, added: Array, out: FolderWriter) -> None:
    rows, file = _rows(base, entry, name), layout.node_ids(entry.type, name)
    merge = at_end(len(rows), len(added))
    out.array(file, base.arrays[file].dtype, (len(merge),), merge.chunks(rows.read, added))


def _rows(base: GraphFolder, entry: NodeEntry, name: str) -> CheckedRows:
    file = layout.node_ids(entry.type, name)
    return CheckedRows(base.path / file, base.arrays[file])


def _write_anew(
    base: GraphFolder, entry: NodeEntry, new: Keys, out: FolderWriter, memory: int, threads: int
) -> None:
    """Write an index with more buckets, or wider numbers of nodes."""
    for name in ("offsets", "bytes") if entry.ids == STRING else ("keys",):
        rows = _rows(base, entry, name)
        for first in range(0, max(1, len(rows)), 1 << 20):
            rows.read(first, min(len(rows), first + (1 << 20)))
    stored = ids_in(base.path, base.arrays, entry.type, entry.count).stored

    def chunks() -> Iterator[Keys]:
        return chain(sliced(stored), sliced(new))

    kind: Kind = "string" if isinstance(new, StringKeys) else "int64"
    write_ids(out, entry.type, kind, partial(chunks), out.folder, memory, threads)
