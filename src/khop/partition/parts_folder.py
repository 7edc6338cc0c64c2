"""An opened folder of parts: the book, and those parts of it that are held here."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from khop.graph import layout
from khop.graph.folder import ORIGINAL_ID, Folder, GraphFolder, open_folder
from khop.partition.book import (
    PartitionBook,
    is_partitioned,
    map_splits,
    map_whole,
    open_part,
    part_folder,
    read_book,
)
from khop.schema import EdgeType, NodeType, Schema


@dataclass(frozen=True, eq=False)
class PartsFolder:
    """Some parts of a graph, one after another. Ids are those of the whole graph; pickles as its path.

    What is said of all nodes (counts, splits, original ids, columns of one number) is known whichever parts
    are held.
    """

    path: Path  # absolute
    book: PartitionBook
    held: range  # numbers of parts
    parts: tuple[GraphFolder, ...]  # those held, in order
    _mapped: dict[str, Tensor] = field(default_factory=dict, repr=False)

    @property
    def schema(self) -> Schema:
        """The types of the whole graph, with their columns."""
        return self.parts[0].schema

    @property
    def fingerprint(self) -> str:
        """Equal for equal folders of parts, wherever they lie."""
        return self.book.fingerprint

    def num_nodes(self, node_type: NodeType) -> int:
        """How many nodes of a type there are in all parts."""
        if node_type not in self.book.offsets:
            raise ValueError(f"no node type {node_type!r}; there are {list(self.book.offsets)}")
        return self.book.offsets[node_type][-1]

    def num_edges(self, edge_type: EdgeType) -> int:
        """How many edges of a type there are in all parts."""
        return self.book.first_edges(edge_type)[-1]

    def bounds(self, type_: NodeType | EdgeType) -> tuple[int, ...]:
        """Where the ids of each held part begin, and where those of the last one end."""
        of_all = self.book.offsets[type_] if isinstance(type_, str) else self.book.first_edges(type_)
        return of_all[self.held.start : self.held.stop + 1]

    @property
    def split_names(self) -> tuple[str, ...]:
        """The splits that some node type has, in the order they were given."""
        return tuple(map_splits(self.path, self.book))

    def split(self, name: str) -> Mapping[NodeType, Tensor]:
        """The int64 node ids of a split, of each node type that has it, in the order of the graph before."""
        splits = map_splits(self.path, self.book)
        if name not in splits:
            raise ValueError(f"{self.path}: no split {name!r}; there are {list(splits)}")
        return splits[name]

    def original_ids(self, node_type: NodeType) -> Tensor:
        """int64 (nodes of all parts): the ids before nodes were renumbered."""
        return self.whole_array(layout.node_column(node_type, ORIGINAL_ID))

    def columns(self) -> Mapping[NodeType | EdgeType, Mapping[str, Tensor]]:
        """Every column of every type. Edge columns are in the order of the parts.

        Those of one number per node are mapped. Of the others all parts have to be open, which are put
        together, in memory, when one is asked for.
        """
        return {type_: _Columns(self, type_) for type_ in self.schema.columns}

    def whole_array(self, file: str) -> Tensor:
        """One of the arrays that every machine has of all nodes, mapped: see `whole_arrays`."""
        return self.made(file, lambda: map_whole(self.path, self.book, file))

    def made(self, name: str, make: Callable[[], Tensor]) -> Tensor:
        """What `make` gives, made once."""
        if name not in self._mapped:
            self._mapped[name] = make()
        return self._mapped[name]

    def __reduce__(self) -> tuple[Callable[..., PartsFolder], tuple[object, ...]]:
        return open_parts, (self.path, self.held)


class _Columns(Mapping[str, Tensor]):
    """The columns of one type by name, each put together when it is asked for."""

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
        return folder.made(file, lambda: torch.cat([part.columns()[type_][name] for part in folder.parts]))

    def __contains__(self, name: object) -> bool:
        return name in self._names  # without putting it together

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def check_whole(folder: PartsFolder, what: str) -> None:
    """ValueError unless all parts are held."""
    if len(folder.held) < folder.book.num_parts:
        raise ValueError(
            f"{what}: lies in {folder.book.num_parts} parts, of which {held_parts(folder)} of {folder.path} "
            "is open here; ask a process that has all of them"
        )


def held_parts(folder: PartsFolder) -> str:
    """For errors: "part 3" or "parts 0 to 3"."""
    first, last = folder.held[0], folder.held[-1]
    return f"part {first}" if first == last else f"parts {first} to {last}"


def open_parts(path: str | os.PathLike[str], held: Sequence[int] | None = None) -> PartsFolder:
    """Open consecutive parts of a folder, all of them by default; nothing is read but their descriptions."""
    folder = Path(path).absolute()
    book = read_book(folder)
    numbers = range(book.num_parts) if held is None else range(held[0], held[-1] + 1)
    if held is not None and (list(held) != list(numbers) or not 0 <= held[0] <= held[-1] < book.num_parts):
        raise ValueError(
            f"{folder}: parts {list(held)} are asked for; give consecutive ones, from 0 to "
            f"{book.num_parts - 1}"
        )
    for number in numbers:
        if not part_folder(folder, number).is_dir():
            raise ValueError(
                f"{folder}: part {number} of {book.num_parts} is not on this machine, there is no "
                f"{part_folder(folder, number).name}; copy it here, or leave it to a machine that has it"
            )
    return PartsFolder(folder, book, numbers, tuple(open_part(folder, book, number) for number in numbers))


def known_folder(path: str | os.PathLike[str]) -> Folder:
    """What is known of a graph: its folder or, of a folder of parts, with whichever part lies here."""
    if not is_partitioned(path):
        return open_folder(path)
    parts = range(read_book(path).num_parts)
    return open_parts(path, [next((n for n in parts if part_folder(Path(path), n).is_dir()), 0)])
