"""The users' ids of a node type, written with their index, within a budget of memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from khop.graph import layout
from khop.graph.edge_groups import Grouping
from khop.graph.edge_runs import SOURCE, EdgeChunk, EdgePlan, EdgeRuns, spill
from khop.graph.folder_writer import FolderWriter
from khop.graph.node_ids import STRING
from khop.graph.parallel_tasks import in_order
from khop.kernels.id_table import IdTable, Keys, Kind, StringKeys, keys_at
from khop.kernels.key_index import bucket_bits, key_buckets
from khop.schema import NodeType

KeyChunks = Callable[[], Iterable[Keys]]  # all keys in order of their rows; called twice
CHUNK_KEYS = 1 << 18
_TAG = "tag"


def table_chunks(table: IdTable[Any]) -> Iterator[Keys]:
    """Yield the keys of a table in order."""
    for first in range(0, len(table), CHUNK_KEYS):
        yield table.keys(np.arange(first, min(len(table), first + CHUNK_KEYS)))


def sliced(keys: Keys) -> Iterator[Keys]:
    """Yield slices of keys."""
    for first in range(0, len(keys), CHUNK_KEYS):
        yield keys[first : first + CHUNK_KEYS]


def chosen(keys: Keys, rows: npt.NDArray[np.int64]) -> Iterator[Keys]:
    """Yield the keys at some rows, in their order."""
    for first in range(0, len(rows), CHUNK_KEYS):
        yield keys_at(keys, rows[first : first + CHUNK_KEYS])


def write_ids(
    writer: FolderWriter,
    node_type: NodeType,
    kind: Kind,
    chunks: KeyChunks,
    scratch: Path,
    memory: int,
    threads: int,
) -> None:
    """Write the ids of all nodes of a type. They must be distinct; a file in `scratch` comes and goes."""
    count, num_bytes = _sizes(chunks())
    bits = bucket_bits(count)
    if kind == STRING:
        _write_strings(writer, node_type, chunks(), count, num_bytes)
    else:
        writer.array(layout.node_ids(node_type, "keys"), "int64", (count,), _integers(chunks()))
    plan = EdgePlan((node_type, "id", "bucket"), count, 1 << bits, {_TAG: ("int16", ())})
    runs = EdgeRuns(scratch / f"ids-{node_type}", plan, memory, threads)
    try:
        spill([runs], _bucket_tasks(chunks(), bits))
        _write_index(writer, node_type, runs)
    finally:
        runs.close()


def _sizes(chunks: Iterable[Keys]) -> tuple[int, int]:
    count = num_bytes = 0
    for keys in chunks:
        count += len(keys)
        num_bytes += int(keys.offsets[-1] - keys.offsets[0]) if isinstance(keys, StringKeys) else 0
    return count, num_bytes


def _write_strings(
    writer: FolderWriter, node_type: NodeType, chunks: Iterable[Keys], count: int, num_bytes: int
) -> None:
    offsets = writer.open_array(layout.node_ids(node_type, "offsets"), "int64", (count + 1,))
    data = writer.open_array(layout.node_ids(node_type, "bytes"), "uint8", (num_bytes,))
    end = 0
    offsets.write(np.zeros(1, np.int64))
    for keys in chunks:
        assert isinstance(keys, StringKeys)
        first, last = int(keys.offsets[0]), int(keys.offsets[-1])
        offsets.write(keys.offsets[1:] - (first - end))
        data.write(keys.data[first:last])
        end += last - first
    offsets.close()
    data.close()


def _integers(chunks: Iterable[Keys]) -> Iterator[npt.NDArray[np.int64]]:
    for keys in chunks:
        assert isinstance(keys, np.ndarray)
        yield keys


def _bucket_tasks(chunks: Iterable[Keys], bits: int) -> Iterator[Callable[[], list[EdgeChunk]]]:
    first = 0
    for keys in chunks:
        yield partial(_bucketed, keys, bits, first)
        first += len(keys)


def _bucketed(keys: Keys, bits: int, first: int) -> list[EdgeChunk]:
    bucket, tag = key_buckets(keys, bits)
    return [EdgeChunk(np.arange(first, first + len(keys)), bucket, {_TAG: tag})]


def _write_index(writer: FolderWriter, node_type: NodeType, runs: EdgeRuns) -> None:
    plan, end = runs.plan, 0
    buckets = writer.open_array(layout.node_ids(node_type, "buckets"), "int64", (plan.num_destinations + 1,))
    rows = writer.open_array(layout.node_ids(node_type, "rows"), plan.source_dtype, (runs.count,))
    tags = writer.open_array(layout.node_ids(node_type, "tags"), "int16", (runs.count,))
    buckets.write(np.zeros(1, np.int64))
    with ExitStack() as opened:
        for piece in in_order(Grouping.of(runs, opened).tasks(runs.spill), runs.threads):
            buckets.write(np.cumsum(piece.degrees) + end)
            end += int(piece.degrees.sum())
            if piece.fields:
                rows.write(piece.fields[SOURCE])
                tags.write(piece.fields[_TAG])
    for array in (buckets, rows, tags):
        array.close()
