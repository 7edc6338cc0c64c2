"""An open partitioned graph: its partition book, and the memory-mapped parts of this process."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from khop.errors import REMEDY
from khop.graph import layout
from khop.graph.folder import ORIGINAL_ID, Folder, GraphFolder, check_split_ids, open_folder
from khop.graph.layout import is_partitioned
from khop.graph.manifest import Contents
from khop.graph.npy import ArrayEntry, file_problem, map_array
from khop.graph.partitions.book import BOOK, PartitionBook, part_folder, read_book
from khop.kernels.csc import Csc, edge_spans
from khop.kernels.philox import mixed, signed
from khop.schema import EdgeType, NodeType, Schema


def open_part(
    path: str | os.PathLike[str], book: PartitionBook, part: int, contents: Contents = Contents.ALL
) -> GraphFolder:
    """Open one part, mapped. Raises ValueError if it belongs to another graph, or if files are missing."""
    folder = open_folder(part_folder(Path(path), part), contents)
    entry = folder.manifest.part
    if folder.fingerprint != book.parts[part] or entry is None or entry.offsets != book.offsets:
        raise ValueError(
            f"{folder.path}: not the part that {BOOK} was written with; copy all of the folder again"
        )
    return folder


def map_whole(path: str | os.PathLike[str], book: PartitionBook, file: str) -> Tensor:
    """Map one of the book's arrays of all nodes. Raises ValueError if it differs from the book's entry."""
    place, entry = Path(path) / file, book.wholes[file]
    if problem := file_problem(place, entry):
        raise ValueError(f"{place}: {problem}; {REMEDY}")
    return map_array(place, entry)


def map_splits(path: str | os.PathLike[str], book: PartitionBook) -> dict[str, dict[NodeType, Tensor]]:
    """Map the splits, by name and node type: int64 global ids, in the order of the unpartitioned graph."""
    splits: dict[str, dict[NodeType, Tensor]] = {}
    for file in filter(layout.is_split, book.wholes):
        node_type, name = layout.split_of(file)
        splits.setdefault(name, {})[node_type] = map_whole(path, book, file)
    return splits


@dataclass(frozen=True, eq=False)
class PartsFolder:
    """Consecutive parts of a partitioned graph. Ids are global. Pickles as the path of the folder.

    The properties of all nodes (counts, splits, original ids, scalar columns) are always available,
    regardless of the local parts.
    """

    path: Path  # absolute
    schema: Schema  # of the whole graph, with its columns
    fingerprint: str  # of the partitioned graph: equal for equal content, regardless of the path
    book: PartitionBook
    held: range  # numbers of the parts with edges on this machine
    columns_of: range  # the local parts with all columns; the other local parts may lack some
    parts: tuple[GraphFolder, ...]  # the local parts, in order
    documents: Mapping[str, str]  # JSON files next to the parts: sha256 by name
    joined: dict[str, Tensor] = field(default_factory=dict, repr=False)  # columns of all parts, by file
    _mapped: dict[str, Tensor] = field(default_factory=dict, repr=False)

    @property
    def arrays(self) -> Mapping[str, ArrayEntry]:
        """The arrays of the local parts and of all nodes, by file relative to the folder."""
        of_parts = {
            f"{part.path.name}/{file}": entry for part in self.parts for file, entry in part.arrays.items()
        }
        return {**of_parts, **self.book.wholes}

    @property
    def row_order(self) -> Mapping[EdgeType, str]:
        """Column by which the rows of an edge type are sorted; types in the input order are left out."""
        return self.parts[0].row_order

    def num_nodes(self, node_type: NodeType) -> int:
        """Return the number of nodes of a type in all parts."""
        if node_type not in self.book.offsets:
            raise ValueError(f"no node type {node_type!r}; there are {list(self.book.offsets)}")
        return self.book.offsets[node_type][-1]

    def num_edges(self, edge_type: EdgeType) -> int:
        """Return the number of edges of a type in all parts."""
        return self.book.first_edges(edge_type)[-1]

    def bounds(self, type_: NodeType | EdgeType) -> tuple[int, ...]:
        """Return the first global id of each local part, then the end of the last."""
        of_all = self.book.offsets[type_] if isinstance(type_, str) else self.book.first_edges(type_)
        return of_all[self.held.start : self.held.stop + 1]

    @property
    def split_names(self) -> tuple[str, ...]:
        """Names of the splits of all node types, in the given order."""
        return tuple(map_splits(self.path, self.book))

    def split(self, name: str) -> Mapping[NodeType, Tensor]:
        """Return the int64 node ids of a split by node type, in the order of the unpartitioned graph."""
        splits = map_splits(self.path, self.book)
        if name not in splits:
            raise ValueError(f"{self.path}: no split {name!r}; there are {list(splits)}")
        for node_type, ids in splits[name].items():
            file = self.path / layout.node_split(node_type, name)
            check_split_ids(file, ids, self.num_nodes(node_type))
        return splits[name]

    def original_ids(self, node_type: NodeType) -> Tensor:
        """Return the original ids, int64 (nodes of all parts)."""
        return self.whole_array(layout.node_column(node_type, ORIGINAL_ID))

    def edge_id(self, edge_type: EdgeType) -> Tensor | None:
        """Return the position of each edge in the input of the unpartitioned graph, in the order of parts.

        None if it was not stored, or is not on this machine.
        """
        file = layout.edge_array(edge_type, "edge_id")
        of_parts = [part.array(file) for part in self.parts if file in part.arrays]
        return torch.cat(of_parts) if of_parts and len(of_parts) == self.book.num_parts else None

    def columns(self) -> Mapping[NodeType | EdgeType, Mapping[str, Tensor]]:
        """Return every column of every type. Edge columns are in the order of the parts.

        Scalar node columns are mapped. Other columns are joined in memory on first use, which requires all
        parts.
        """
        return {type_: _Columns(self, type_) for type_ in self.schema.columns}

    def whole_array(self, file: str) -> Tensor:
        """Map one of the arrays of all nodes, which every machine has; see `whole_arrays`."""
        if file not in self._mapped:
            self._mapped[file] = map_whole(self.path, self.book, file)
        return self._mapped[file]

    def __reduce__(self) -> tuple[Callable[..., PartsFolder], tuple[object, ...]]:
        return open_parts, (self.path, self.held, self.columns_of)


class _Columns(Mapping[str, Tensor]):
    """The columns of one type by name, each joined on first use."""

    def __init__(self, folder: PartsFolder, type_: NodeType | EdgeType) -> None:
        self._folder = folder
        self._type = type_
        self._names = folder.schema.columns[type_]

    def __getitem__(self, name: str) -> Tensor:
        folder, type_ = self._folder, self._type
        self._names[name]  # KeyError
        file = layout.node_column(type_, name) if isinstance(type_, str) else layout.edge_column(type_, name)
        if file in folder.book.wholes:
            return folder.whole_array(file)
        check_whole(folder, f"column {name!r} of {type_!r}")
        for part in folder.parts:
            if file not in part.arrays:
                raise ValueError(
                    f"column {name!r} of {type_!r}: {part.path / file} is not on this "
                    "machine; use a process with all parts"
                )
        if file not in folder.joined:
            folder.joined[file] = torch.cat([part.columns()[type_][name] for part in folder.parts])
        return folder.joined[file]

    def __contains__(self, name: object) -> bool:
        return name in self._names  # Mapping's default would join the column

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def check_whole(folder: PartsFolder, what: str) -> None:
    """Raise ValueError unless all parts are local."""
    if len(folder.held) < folder.book.num_parts:
        raise ValueError(
            f"{what}: is in {folder.book.num_parts} parts, but only {held_parts(folder)} of {folder.path} "
            "is open in this process; use a process with all parts"
        )


def held_parts(folder: PartsFolder) -> str:
    """Name parts for an error message: "part 3" or "parts 0 to 3"."""
    return named_parts(folder.held)


def named_parts(parts: range) -> str:
    """Name parts for an error message: "part 3" or "parts 0 to 3"."""
    return f"part {parts[0]}" if len(parts) == 1 else f"parts {parts[0]} to {parts[-1]}"


def open_parts(
    path: str | os.PathLike[str], held: Sequence[int] | None = None, columns_of: range | None = None
) -> PartsFolder:
    """Open consecutive parts of a folder, by default all of them. Only their descriptions are read.

    With `columns_of`, the columns of all other parts may be absent (`Contents.EDGES`).
    """
    folder = Path(path).absolute()
    book = read_book(folder)
    numbers = range(book.num_parts) if held is None else range(held[0], held[-1] + 1)
    whole = numbers if columns_of is None else columns_of
    if held is not None and (list(held) != list(numbers) or not 0 <= held[0] <= held[-1] < book.num_parts):
        raise ValueError(
            f"{folder}: parts {list(held)} are requested; give consecutive ones, from 0 to "
            f"{book.num_parts - 1}"
        )
    _check_described(folder, book, numbers)
    for file, entry in book.wholes.items():
        if problem := file_problem(folder / file, entry):
            raise ValueError(f"{folder / file}: {problem}; {REMEDY}")
    contents = (Contents.ALL if number in whole else Contents.EDGES for number in numbers)
    parts = [open_part(folder, book, number, of) for number, of in zip(numbers, contents, strict=True)]
    return PartsFolder(
        folder, parts[0].schema, book.fingerprint, book, numbers, whole, tuple(parts), book.documents
    )


def known_folder(path: str | os.PathLike[str]) -> Folder:
    """Open a graph for its properties: a graph folder, or a partitioned graph with at least one part."""
    if not is_partitioned(path):
        return open_folder(path)
    folder = Path(path).absolute()
    book = read_book(folder)
    described = (n for n in range(book.num_parts) if (part_folder(folder, n) / layout.MANIFEST).is_file())
    number = next(described, 0)
    _check_described(folder, book, [number])
    part = open_part(folder, book, number, Contents.NOTHING)
    held = range(number, number + 1)
    return PartsFolder(folder, part.schema, book.fingerprint, book, held, range(0), (part,), book.documents)


def files_of_parts(path: str | os.PathLike[str], held: range, columns_of: range) -> list[str]:
    """Return the files that `open_parts` needs for these parts, relative to the folder.

    The folder must contain the descriptions of all of these parts.
    """
    book = read_book(path)
    files = [BOOK, *book.wholes, *book.documents]
    for number in range(book.num_parts):
        if number in held or number in columns_of:
            manifest = open_part(path, book, number, Contents.NOTHING).manifest
            name = part_folder(Path(), number)
            contents = Contents.ALL if number in columns_of else Contents.EDGES
            files += [str(name / layout.MANIFEST), *(f"{name}/{file}" for file in manifest.files(contents))]
    return sorted(files)


def _check_described(folder: Path, book: PartitionBook, numbers: Iterable[int]) -> None:
    """Raise ValueError for a part without a folder on this machine."""
    for number in numbers:
        if not part_folder(folder, number).is_dir():
            raise ValueError(
                f"{folder}: part {number} of {book.num_parts} is not on this machine: there is no "
                f"{part_folder(folder, number).name}; copy it here, or leave it to a machine that has it"
            )


_WORD = (1 << 64) - 1
# Odd constants of SplitMix64 and xxHash64.
_SOURCE, _DESTINATION, _PLACE = 0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9


def edge_digest(csc: Csc, sources: Tensor | None, destinations: Tensor | None) -> int:
    """Sum a 64-bit hash of (source, destination, position in the row) over all edges, modulo 2^64.

    `sources` and `destinations` map the ids in `csc` to int64 original ids; None: the ids are original.
    If the digest of a graph equals the sum over its parts, and so does the number of edges, then no edge is
    lost or duplicated and every row keeps its order. The chance of an undetected difference is one in 2^64.
    An edge from node 0 to node 0 at the first position has the hash 0, so the numbers have to be compared
    too.
    """
    csc.check()
    total = 0
    for span in edge_spans(csc.indptr):
        numbers = torch.arange(span.rows.start, span.rows.stop)
        places = torch.arange(span.first, span.end) - span.per_edge(csc.indptr[span.rows])
        ends = csc.indices[span.first : span.end].long()
        ends = ends if sources is None else sources[ends]
        rows = span.per_edge(numbers if destinations is None else destinations[span.rows])
        words = ends * signed(_SOURCE) + mixed(rows * signed(_DESTINATION) + places * signed(_PLACE))
        total += int(mixed(words).sum())
    return total & _WORD
