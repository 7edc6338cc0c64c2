"""Precomputed propagation: node columns averaged over neighbors, hop by hop, and written as new columns.

The rows of a hop are computed in chunks, as many numbers of each as memory allows, into files with journals.
Threads and ranks share the chunks; how they do it never changes a bit.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from khop.arguments import check_word, whole_number
from khop.distributed.processes.group import Group, check_equal_settings
from khop.graph import layout
from khop.graph.atomic import (
    Meter,
    ProgressCallback,
    check_disk,
    in_bytes,
    in_order,
    new_folder,
    refuse_existing,
)
from khop.graph.folder import Folder, GraphFolder, open_folder, refuse_damage
from khop.graph.folder_writer import FolderWriter, share_files
from khop.graph.layout import is_partitioned
from khop.graph.manifest import Manifest, NodeEntry, write_manifest
from khop.graph.npy import STORED, ArrayEntry, torch_dtype
from khop.graph.partitions.book import PartitionBook, part_folder, write_book
from khop.graph.partitions.parts_folder import PartsFolder, open_parts
from khop.graph.snapshots import link_files
from khop.inference.chunks import DynamicChunks, Progress, unwatched
from khop.inference.stages import ChunkLimits, Stage, chunk_starts
from khop.inference.work_folder import WorkFolder, begun_facts, is_seen_by_all, remove, work_folder
from khop.kernels.memory import expect_random_access
from khop.kernels.segment import segment_mean
from khop.loading.ordered_map import InFlight
from khop.schema import ColumnSpec, EdgeType, NodeType, Schema

Norm = Literal["mean", "symmetric"]
Array = npt.NDArray[Any]
UNFINISHED = ".unfinished"  # suffix of the work folder next to the result
_LINES_BYTES = 128  # rows narrower than the column's are whole pairs of cache lines, if memory allows
_LIMITS = ChunkLimits(nodes=1 << 16, edges=1 << 19)
_CHUNK_BYTES = 4 << 20  # rows of a chunk
_SPAN_BYTES = 4 << 20  # rows that are copied at once; more leave the caches before they are written
THREAD_BYTES = 24 << 20  # memory of one thread: the edges and the rows of a chunk, or pieces of a column


def hop_column(column: str, hop: int) -> str:
    """Return the name of a propagated column, such as x_2 for two hops of x."""
    return f"{column}_{hop}"


@dataclass(frozen=True)
class ColumnBlock:
    """Consecutive numbers of the rows of a column, propagated together."""

    column: str
    first: int
    last: int  # one past the last number

    @property
    def width(self) -> int:
        """Numbers of a row."""
        return self.last - self.first


@dataclass(frozen=True, eq=False)
class GraphFiles:
    """The arrays of a graph folder, whole or partitioned, read from their files and not mapped.

    Mapped pages would count as memory of this process until the system needs them.
    """

    folder: Folder
    pieces: tuple[GraphFolder, ...]  # the folder, or its partitions
    bounds: Mapping[NodeType, tuple[int, ...]]  # first node of each piece, and the end

    @classmethod
    def open(cls, path: Path) -> GraphFiles:
        """Open a graph folder; after appends, its newest snapshot."""
        if is_partitioned(path):
            parts = open_parts(path)
            return cls(parts, parts.parts, parts.book.offsets)
        whole = open_folder(path)
        return cls(whole, (whole,), {t: (0, whole.num_nodes(t)) for t in whole.schema.node_types})

    def degrees(self, edge_type: EdgeType, rows: slice) -> npt.NDArray[np.int64]:
        """Return the numbers of in-edges of some destinations of one piece."""
        return np.diff(self._indptr(edge_type, rows)[1])

    def edges(self, edge_type: EdgeType, rows: slice) -> tuple[Tensor, Tensor]:
        """Return the edges of some destinations of one piece: int64 offsets, and global ids of sources."""
        piece, indptr = self._indptr(edge_type, rows)
        begin, end = int(indptr[0]), int(indptr[-1])
        indices = _read(piece, layout.edge_array(edge_type, "indices"), slice(begin, end))
        return torch.from_numpy(indptr - begin), torch.from_numpy(indices)

    def rows(self, node_type: NodeType, block: ColumnBlock, rows: slice, dtype: torch.dtype) -> Tensor:
        """Read numbers of a column, (rows, width), for some nodes of one piece."""
        piece, here = self._at(node_type, rows)
        file = layout.node_column(node_type, block.column)
        stored = torch.from_numpy(_read(piece, file, here))
        if torch_dtype(piece.arrays[file].dtype) == torch.bfloat16:
            stored = stored.view(torch.bfloat16)
        found = stored.reshape(stored.shape[0], -1)[:, block.first : block.last].to(dtype)
        scales = self.folder.schema.columns[node_type][block.column].scales
        if scales is not None:
            found *= torch.tensor(scales[block.first : block.last], dtype=dtype)
        return found

    def _indptr(self, edge_type: EdgeType, rows: slice) -> tuple[GraphFolder, npt.NDArray[np.int64]]:
        piece, here = self._at(edge_type[2], rows)
        span = slice(here.start, here.stop + 1)
        return piece, _read(piece, layout.edge_array(edge_type, "indptr"), span)

    def _at(self, node_type: NodeType, rows: slice) -> tuple[GraphFolder, slice]:
        bounds = self.bounds[node_type]
        number = bisect_right(bounds, rows.start, hi=len(bounds) - 1) - 1
        first = bounds[number]
        return self.pieces[number], slice(rows.start - first, rows.stop - first)


def _read(piece: GraphFolder, file: str, rows: slice) -> Array:
    return read_rows(piece.path / file, piece.arrays[file], rows)


def read_rows(path: Path, entry: ArrayEntry, rows: slice) -> Array:
    """Read consecutive rows of an array from its file."""
    dtype, width = np.dtype(STORED[entry.dtype]), int(np.prod(entry.shape[1:], dtype=np.int64))
    count = (rows.stop - rows.start) * width
    offset = entry.bytes - entry.data_bytes + rows.start * width * dtype.itemsize
    found = np.fromfile(path, dtype, count, offset=offset) if count else np.empty(0, dtype)
    return found.reshape(rows.stop - rows.start, *entry.shape[1:])


@dataclass(frozen=True, eq=False)
class Propagation:
    """A validated plan of columns to compute and write."""

    files: GraphFiles
    out: Path
    columns: tuple[str, ...]
    hops: int
    norm: Norm
    memory: int  # bytes that the rows of one block may take, in this process

    @classmethod
    def of(
        cls, graph: Path, out: Path, columns: Sequence[str], hops: int, norm: Norm, memory: int
    ) -> Propagation:
        """Make the plan; ValueError if the graph does not fit it, or `out` exists."""
        refuse_existing(out)
        check_word("norm", norm, Norm)
        made = cls(GraphFiles.open(graph), out, tuple(columns), whole_number("hops", hops, 1), norm, memory)
        schema = made.files.folder.schema
        if not columns or len(set(columns)) < len(columns):
            raise ValueError(f"columns {list(columns)}: name at least one column, and each once")
        for column in made.columns:
            _check_column(schema, column, graph)
            for hop, of_hop in enumerate(made.relations(column), 1):
                if not of_hop:
                    raise ValueError(
                        f"hops {hops}: no edge type of {graph} leads from nodes that have "
                        f"{(hop_column(column, hop - 1) if hop > 1 else column)!r}; "
                        + (f"give {hop - 1}" if hop > 1 else "add edges from them, or name another column")
                    )
                for node_type in of_hop:
                    if hop_column(column, hop) in schema.columns.get(node_type, {}):
                        raise ValueError(
                            f"column {hop_column(column, hop)!r}: {node_type!r} nodes of {graph} have it "
                            "already; propagate the graph without it"
                        )
        if norm == "symmetric" and [t[0] == t[2] for t in schema.edge_types] != [True]:
            raise ValueError(
                f"norm symmetric: {graph} has the edge types {[' '.join(t) for t in schema.edge_types]}; it "
                "needs one, between nodes of one type; give mean"
            )
        assert made.widths  # raises an error about memory
        return made

    def relations(self, column: str) -> list[dict[NodeType, tuple[EdgeType, ...]]]:
        """Return the edge types of each hop by destination: those whose sources have rows before it."""
        schema = self.files.folder.schema
        having = {t for t in schema.node_types if column in schema.columns.get(t, {})}
        found = []
        for _ in range(self.hops):
            into: dict[NodeType, tuple[EdgeType, ...]] = {}
            for edge_type in schema.edge_types:
                if edge_type[0] in having:
                    into[edge_type[2]] = (*into.get(edge_type[2], ()), edge_type)
            found.append(into)
            having = set(into)
        return found

    @cached_property
    def blocks(self) -> tuple[ColumnBlock, ...]:
        """The blocks of all columns, as wide as memory allows."""
        return tuple(
            block
            for column, width in zip(self.columns, self.widths, strict=True)
            for block in self._blocks_of(column, width)
        )

    def _blocks_of(self, column: str, width: int) -> Iterator[ColumnBlock]:
        count = self._spec(column).width
        for first in range(0, count, width):
            yield ColumnBlock(column, first, min(count, first + width))

    @cached_property
    def widths(self) -> tuple[int, ...]:
        """Width of the blocks of each column; that of unfinished work if memory allows."""
        most = tuple(self._most(column) for column in self.columns)
        begun = tuple(map(int, re.findall(r"\d+", begun_facts(self.work_folder).get("memory", ""))))
        fits = len(begun) == len(most) and all(0 < b <= m for b, m in zip(begun, most, strict=True))
        return begun if fits else most

    def _most(self, column: str) -> int:
        """Return the largest width that memory allows; ValueError if it does not allow one number."""
        types = {t for of_hop in self.relations(column) for edges in of_hop.values() for t, _, _ in edges}
        number_bytes = self.dtype_of(column).itemsize
        one = number_bytes * max(1, sum(self.files.folder.num_nodes(t) for t in types))
        if self.memory < one:
            raise ValueError(
                f"memory: {in_bytes(self.memory)} remains for rows, but one number per node needs "
                f"{in_bytes(one)}; allow at least {in_bytes(one - self.memory)} more, or fewer threads"
            )
        width, most, lines = self._spec(column).width, self.memory // one, _LINES_BYTES // number_bytes
        if width <= most:
            return width
        return most // lines * lines or most

    def _spec(self, column: str) -> ColumnSpec:
        of_types = self.files.folder.schema.columns
        return next(of[column] for t, of in of_types.items() if isinstance(t, str) and column in of)

    def dtype_of(self, column: str) -> torch.dtype:
        """Return the dtype of the results: float64 for a column of float64, else float32."""
        return torch.float64 if self._spec(column).dtype == "float64" else torch.float32

    @cached_property
    def stages(self) -> list[list[Stage]]:
        """The stages of each hop of each block."""
        starts: dict[tuple[NodeType, int], tuple[int, ...]] = {}
        found = []
        for number, block in enumerate(self.blocks):
            for hop, into in enumerate(self.relations(block.column)):
                like = torch.empty(0, block.width, dtype=self.dtype_of(block.column))
                found.append([self._stage(number * self.hops + hop, t, like, starts) for t in into])
        return found

    def _stage(
        self,
        layer: int,
        node_type: NodeType,
        like: Tensor,
        starts: dict[tuple[NodeType, int], tuple[int, ...]],
    ) -> Stage:
        bounds = self.files.bounds[node_type]
        row_bytes = like.shape[1] * like.element_size()
        nodes = min(_LIMITS.nodes, max(1, _CHUNK_BYTES // row_bytes))
        into = [t for t in self.files.folder.schema.edge_types if t[2] == node_type]

        def edges_of(rows: slice) -> Tensor:
            return torch.from_numpy(np.sum([self.files.degrees(t, rows) for t in into], axis=0))

        if (node_type, nodes) not in starts:
            starts[node_type, nodes] = chunk_starts(bounds, ChunkLimits(nodes, _LIMITS.edges), edges_of)
        bounded = starts[node_type, nodes]
        return Stage(layer, node_type, bounds[-1], nodes, like, pieces=bounds, bounded=bounded)

    @property
    def facts(self) -> dict[str, str]:
        """Settings that must be equal for a later call to resume from the work of this one."""
        return {
            "graph": self.files.folder.fingerprint,
            "propagation": f"{self.hops} hops of {', '.join(self.columns)}, norm {self.norm}",
            "memory": f"{', '.join(map(str, self.widths))} numbers per node",
        }

    @property
    def total_rows(self) -> int:
        """Number of rows over all stages."""
        return sum(stage.count for layer in self.stages for stage in layer)

    def row_bytes(self, column: str) -> int:
        """Bytes of a row of a column in its widest form."""
        return self._spec(column).width * torch.float64.itemsize

    @property
    def result_bytes(self) -> int:
        """Size of the new columns on disk."""
        return sum(stage.entry.data_bytes for layer in self.stages for stage in layer)

    @property
    def disk_bytes(self) -> int:
        """Size of the new columns and of the unfinished work that is copied into them."""
        copied = (
            stage.entry.data_bytes
            for number, block in enumerate(self.blocks)
            if not self._is_final(block)
            for layer in self.stages[number * self.hops : (number + 1) * self.hops]
            for stage in layer
        )
        return self.result_bytes + sum(copied)

    def _is_final(self, block: ColumnBlock) -> bool:
        """Return True if the files of a block's stages are those of the new columns."""
        is_whole = block.width == self._spec(block.column).width and len(self.files.pieces) == 1
        return is_whole and self.norm == "mean"

    @property
    def work_folder(self) -> Path:
        """Path of the folder with unfinished work."""
        return self.out.with_name(self.out.name + UNFINISHED)

    def run(
        self,
        group: Group,
        in_flight: InFlight,
        progress: Progress = unwatched,
        notice: ProgressCallback | None = None,
    ) -> None:
        """Compute all columns and write the new folder, complete or not at all. Collective.

        A call that was killed is resumed by the next one, also with another number of ranks.
        """
        group.meet("propagating")
        check_equal_settings(group, self.facts)
        with group.exchanging("propagating"):
            self.out.absolute().parent.mkdir(parents=True, exist_ok=True)
            if group.world_size > 1 and not is_seen_by_all(self.out.absolute().parent, group):
                raise ValueError(
                    f"{self.out}: not all ranks see its folder; write to a file system that all machines "
                    "share, or propagate on one machine"
                )
            if group.rank == 0:
                refuse_damage(self.files.folder, notice)
                done = sum(file.stat().st_blocks * 512 for file in self.work_folder.glob("*.npy"))
                check_disk(self.out, self.disk_bytes - done, "the columns")
            with work_folder(self.work_folder, self.facts, self.stages, group) as folder:
                _Run(self, folder, DynamicChunks(group, in_flight), progress).compute()
                if group.rank == 0:
                    self._write(folder, in_flight.threads, notice)
                group.barrier()
                remove(folder)

    def _write(self, work: WorkFolder, threads: int, notice: ProgressCallback | None) -> None:
        """Write the folder: the files of the graph as links, and the new columns, several at once."""
        base, meter = self.files.folder, Meter(self.result_bytes, notice)
        with new_folder(self.out) as hidden:
            if isinstance(base, PartsFolder):
                for number, piece in enumerate(self.files.pieces):
                    folder = part_folder(hidden, number)
                    folder.mkdir()
                    self._write_piece(work, number, piece, FolderWriter(folder, meter), threads)
                link_files(base.path, hidden, [*base.book.wholes, *base.documents])
                write_book(hidden, self._book(base.book, hidden))
            else:
                self._write_piece(work, 0, self.files.pieces[0], FolderWriter(hidden, meter), threads)

    def _book(self, book: PartitionBook, hidden: Path) -> PartitionBook:
        numbers = range(book.num_parts)
        return replace(book, parts=tuple(open_folder(part_folder(hidden, n)).fingerprint for n in numbers))

    def _write_piece(
        self, work: WorkFolder, number: int, piece: GraphFolder, out: FolderWriter, threads: int
    ) -> None:
        share_files(piece, out, piece.arrays)
        link_files(piece.path, out.folder, piece.documents)
        names, tasks = dict[NodeType, list[str]](), list[Callable[[], str]]()
        for column in self.columns:
            for hop, into in enumerate(self.relations(column), 1):
                for node_type in into:
                    names.setdefault(node_type, []).append(hop_column(column, hop))
                    tasks.append(partial(self._write_column, work, number, out, column, hop, node_type))
        files = [*piece.arrays, *in_order(tasks, threads)]
        manifest = piece.manifest
        nodes = tuple(_with_columns(entry, names.get(entry.type, [])) for entry in manifest.nodes)
        arrays = {file: out.arrays[file] for file in files}  # columns are finished in any order
        made = Manifest(nodes, manifest.edges, arrays, manifest.part, manifest.documents)
        write_manifest(out.folder, made)

    def _write_column(
        self, work: WorkFolder, number: int, out: FolderWriter, column: str, hop: int, node_type: NodeType
    ) -> str:
        """Write a column of one piece; return the name of its file."""
        first, last = self.files.bounds[node_type][number : number + 2]
        blocks = [index for index, block in enumerate(self.blocks) if block.column == column]
        layers = [self.stages[index * self.hops + hop - 1] for index in blocks]
        stages = [next(s for s in layer if s.node_type == node_type) for layer in layers]
        name, shape = stages[0].entry.dtype, (last - first, self._spec(column).width)
        file = layout.node_column(node_type, hop_column(column, hop))
        if self._is_final(self.blocks[blocks[0]]):
            out.take(file, work.file(stages[0]), stages[0].entry)
            return file
        array = out.open_array(file, name, shape)
        try:
            for rows in spans(first, last, self.row_bytes(column)):
                joined = np.concatenate(
                    [read_rows(work.file(stage), stage.entry, rows) for stage in stages], axis=1
                )
                scales = self.scales(node_type, rows, name, 0.5)
                array.write(joined if scales is None else joined * scales)
            array.close()
        finally:
            array.abandon()
        return file

    def scales(self, node_type: NodeType, rows: slice, dtype: str, power: float) -> Array | None:
        """Return a power of each node's in-degree, (rows, 1), 0 without in-edges; None for means."""
        if self.norm == "mean":
            return None
        (edge_type,) = self.files.folder.schema.edge_types
        degrees = self.files.degrees(edge_type, rows)
        powers = np.where(degrees > 0, np.maximum(degrees, 1).astype(np.float64) ** power, 0)
        return powers.astype(dtype)[:, None]


@dataclass(eq=False)
class _Run:
    """The computation of all stages of a plan."""

    plan: Propagation
    folder: WorkFolder
    sharing: DynamicChunks
    progress: Progress
    done: int = 0
    # Memory of the rows before a hop, of one column at a time. Hops reuse it: the system clears new memory.
    tables: dict[NodeType, Tensor] = field(default_factory=dict)

    def compute(self) -> None:
        """Compute the rows that are not in the folder yet. Collective."""
        for number, block in enumerate(self.plan.blocks):
            if block.first == 0:
                self.tables.clear()
            for hop, into in enumerate(self.plan.relations(block.column)):
                self._hop(number, hop, into)

    def _hop(self, number: int, hop: int, into: Mapping[NodeType, tuple[EdgeType, ...]]) -> None:
        """Compute a hop of a block. Only `tables` has its memory afterwards: the next column frees it."""
        stages = self.plan.stages[number * self.plan.hops + hop]
        if self.folder.is_whole(stages):
            self.done += sum(stage.count for stage in stages)
            return
        before = self._rows_before(number, hop, into)
        for stage in stages:
            self._stage(stage, into[stage.node_type], before)

    def _rows_before(
        self, number: int, hop: int, into: Mapping[NodeType, tuple[EdgeType, ...]]
    ) -> dict[NodeType, Tensor]:
        """Return the rows that a hop averages, of all nodes of each source type."""
        block, found = self.plan.blocks[number], dict[NodeType, Tensor]()
        dtype = self.plan.dtype_of(block.column)
        for node_type in {edge_type[0] for of_type in into.values() for edge_type in of_type}:
            bounds = self.plan.files.bounds[node_type]
            if node_type not in self.tables:  # a column's first block is its widest
                self.tables[node_type] = torch.empty(bounds[-1] * block.width, dtype=dtype)
                expect_random_access(self.tables[node_type])
            flat = self.tables[node_type][: bounds[-1] * block.width]
            table = found[node_type] = flat.view(bounds[-1], block.width)
            if hop:
                before = self.plan.stages[number * self.plan.hops + hop - 1]
                stage = next(stage for stage in before if stage.node_type == node_type)
                _read_into(flat, self.folder.file(stage), stage.entry)
                continue
            pieces = [
                partial(self._read_rows, table, block, node_type, rows)
                for first, last in pairwise(bounds)
                for rows in spans(first, last, self.plan.row_bytes(block.column))
            ]
            for _ in in_order(pieces, self.sharing.in_flight.threads):
                pass
        return found

    def _read_rows(self, table: Tensor, block: ColumnBlock, node_type: NodeType, rows: slice) -> None:
        """Read consecutive rows that the first hop averages."""
        read = self.plan.files.rows(node_type, block, rows, table.dtype)
        scales = self.plan.scales(node_type, rows, str(table.dtype).removeprefix("torch."), -0.5)
        table[rows] = read if scales is None else read * torch.from_numpy(scales)

    def _stage(self, stage: Stage, edge_types: Sequence[EdgeType], before: Mapping[NodeType, Tensor]) -> None:
        def made(rows: slice) -> Tensor:
            found = [segment_mean(before[t[0]], *self.plan.files.edges(t, rows)) for t in edge_types]
            return found[0] if len(found) == 1 else torch.stack(found).mean(0)

        words = f"computing hop {stage.layer % self.plan.hops + 1} of {stage.node_type}"
        with self.sharing.group.exchanging(words), closing(self.folder.open(stage)) as place:
            computed = stage.count - sum(stage.size(chunk) for chunk in place.missing)
            with closing(self.sharing.taken(stage, place.missing, made, _bytes_of)) as taken:
                for each in taken:
                    place.put(each.chunk, each.made)
                    rest = (stage.count - computed) * each.done // len(place.missing)
                    self.progress(self.done + computed + rest, self.plan.total_rows)
            place.finished()
        self.done += stage.count


def _read_into(flat: Tensor, path: Path, entry: ArrayEntry) -> None:
    """Read all numbers of an array from its file into a tensor, without a copy in between."""
    content = flat.view(torch.uint8).numpy().data
    with path.open("rb", buffering=0) as file:
        file.seek(entry.bytes - entry.data_bytes)
        while size := file.readinto(content):
            content = content[size:]
    assert not content, path


def _bytes_of(rows: Tensor) -> int:
    return rows.numel() * rows.element_size()


def _check_column(schema: Schema, column: str, graph: Path) -> None:
    """Raise ValueError unless a column of nodes has numbers, the same number for all types that have it."""
    specs = {t: of[column] for t, of in schema.columns.items() if isinstance(t, str) and column in of}
    if not specs:
        there = sorted({name for t, of in schema.columns.items() if isinstance(t, str) for name in of})
        raise ValueError(f"column {column!r}: no node type of {graph} has it; the columns are {there}")
    for node_type, spec in specs.items():
        if spec.num_classes is not None or spec.dtype == "bool":
            raise ValueError(
                f"column {column!r} of {node_type!r}: has classes, which cannot be averaged; name a numeric "
                "column"
            )
        if spec.sparse_width is not None:
            raise ValueError(
                f"column {column!r} of {node_type!r} is sparse, and its means are not; import it as a dense "
                "column"
            )
    if len({(spec.width, spec.dtype == "float64") for spec in specs.values()}) > 1:
        widths = {t: f"{spec.width} of {spec.dtype}" for t, spec in specs.items()}
        raise ValueError(f"column {column!r}: node types have rows that cannot be averaged: {widths}")


def _with_columns(entry: NodeEntry, names: Sequence[str]) -> NodeEntry:
    return replace(entry, columns=(*entry.columns, *names))


def spans(first: int, last: int, row_bytes: int) -> Iterator[slice]:
    """Yield consecutive rows from `first` to `last`, a few MiB at a time."""
    step = max(1, _SPAN_BYTES // max(1, row_bytes))
    for start in range(first, last, step):
        yield slice(start, min(last, start + step))
