"""An opened folder of parts: the book, and those parts of it that are held here."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from khop.graph.folder import GraphFolder
from khop.partition.book import PartitionBook, open_part, part_folder, read_book
from khop.schema import EdgeType, NodeType, Schema


@dataclass(frozen=True, eq=False)
class PartsFolder:
    """Some parts of a graph, one after another. Ids are those of the whole graph; pickles as its path."""

    path: Path  # absolute
    book: PartitionBook
    held: range  # numbers of parts
    parts: tuple[GraphFolder, ...]  # those held, in order

    @property
    def schema(self) -> Schema:
        """The types of the whole graph, with their columns."""
        return self.parts[0].schema

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
    def held_parts(self) -> str:
        """For errors: "part 3" or "parts 0 to 3"."""
        first, last = self.held[0], self.held[-1]
        return f"part {first}" if first == last else f"parts {first} to {last}"

    def __reduce__(self) -> tuple[Callable[..., PartsFolder], tuple[object, ...]]:
        return open_parts, (self.path, self.held)


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
