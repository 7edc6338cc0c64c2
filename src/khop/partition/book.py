"""partition.json as a value: which part owns which ids, and what the parts were made of."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from khop.graph import layout
from khop.graph.folder import GraphFolder, open_folder
from khop.graph.manifest import REMEDY, Contents, fingerprint
from khop.graph.npy import ArrayEntry, file_problem, flush, map_array
from khop.schema import EdgeType, NodeType

BOOK = layout.BOOK
FORMAT = "khop-partition"
VERSION = 2


@dataclass(frozen=True)
class Quality:
    """How good a partition is."""

    cut: Mapping[
        str, float
    ]  # by edge type, "source__relation__destination", and "all": share of edges between parts
    shares: Mapping[str, tuple[float, ...]]  # of what was balanced: each part's load over its equal share
    remote_share: float | None = None  # of a batch's nodes, expected; None: nobody asked


@dataclass(frozen=True)
class PartitionBook:
    """What every process knows of a partitioned graph, wherever the parts are.

    Ids are global: the nodes of part 0 come first, then those of part 1, and so on, within each type. So are
    positions of edges: part 0's first, in the order that they have there.
    """

    method: str
    source: str  # the fingerprint of the graph that was partitioned
    offsets: Mapping[NodeType, tuple[int, ...]]  # (parts + 1) of each type
    edge_offsets: Mapping[str, tuple[int, ...]]  # (parts + 1), by edge type as in `Quality.cut`
    parts: tuple[str, ...]  # the fingerprint of each part's folder
    edge_digests: Mapping[
        str, int
    ]  # by edge type as in `Quality.cut`: of all edges by original ids, see digest.py
    quality: Quality
    wholes: Mapping[str, ArrayEntry] = field(
        default_factory=dict
    )  # by file, relative to the folder: what every machine has of all nodes, see wholes.py

    @property
    def num_parts(self) -> int:
        """How many parts there are."""
        return len(self.parts)

    @property
    def fingerprint(self) -> str:
        """Equal for equal folders of parts, wherever they lie."""
        return fingerprint(_content(self))

    def first_edges(self, edge_type: EdgeType) -> tuple[int, ...]:
        """(parts + 1): where each part's edges of a type begin, and how many there are in all."""
        if edge_key(edge_type) not in self.edge_offsets:
            there = [tuple(key.split("__")) for key in self.edge_offsets]
            raise ValueError(f"no edge type {edge_type!r}; there are {there}")
        return self.edge_offsets[edge_key(edge_type)]

    def owner(self, node_type: NodeType, ids: Tensor) -> Tensor:
        """int64, shaped as `ids`: the part of each global id."""
        ends = torch.tensor(self.offsets[node_type][1:])
        return torch.searchsorted(ends, ids, right=True)


def part_folder(path: Path, part: int) -> Path:
    """Where a part lies."""
    return path / part_name(part)


def part_name(part: int) -> str:
    """The name of a part's folder."""
    return f"part-{part:04d}"


def edge_key(edge_type: EdgeType) -> str:
    """The name of an edge type in partition.json."""
    return "__".join(edge_type)


def is_partitioned(path: str | os.PathLike[str]) -> bool:
    """Whether a folder is one of parts."""
    return (Path(path) / BOOK).is_file()


def write_book(folder: Path, book: PartitionBook) -> None:
    """Write partition.json and flush it; the last file of the folder."""
    with (folder / BOOK).open("wb") as file:
        document = {**_content(book), "fingerprint": book.fingerprint}
        file.write(json.dumps(document, indent=1).encode("ascii") + b"\n")
        flush(file)


def _content(book: PartitionBook) -> dict[str, Any]:
    return {"format": FORMAT, "version": VERSION, **asdict(book)}


def read_book(path: str | os.PathLike[str]) -> PartitionBook:
    """partition.json; ValueError where there is none, it is of a newer khop, or damaged."""
    file = Path(path) / BOOK
    if not file.is_file():
        raise ValueError(
            f"{Path(path)}: no folder of parts, or unfinished: no {BOOK}; make one: khop partition"
        )
    try:
        document: dict[str, Any] = json.loads(file.read_bytes())
        claimed = document.pop("fingerprint")
        if (document["format"], document["version"]) != (FORMAT, VERSION):
            found = f"format {document['format']!r} {document['version']}"
            raise ValueError(f"{found}, this khop reads {FORMAT!r} {VERSION}")
        if claimed != fingerprint(document):
            raise ValueError("fingerprint differs from its content")
        return _book(document)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{file}: not what khop writes ({error}); {REMEDY}") from error


def open_part(
    path: str | os.PathLike[str], book: PartitionBook, part: int, contents: Contents = Contents.ALL
) -> GraphFolder:
    """One part, mapped; ValueError where it is another graph's, or lacks what it has to have."""
    folder = open_folder(part_folder(Path(path), part), contents)
    entry = folder.manifest.part
    if folder.fingerprint != book.parts[part] or entry is None or entry.offsets != book.offsets:
        raise ValueError(
            f"{folder.path}: not the part that {BOOK} was written with; copy all of the folder again"
        )
    return folder


def map_whole(path: str | os.PathLike[str], book: PartitionBook, file: str) -> Tensor:
    """One of the book's arrays of all nodes, mapped; ValueError where it is not what the book says."""
    place, entry = Path(path) / file, book.wholes[file]
    if problem := file_problem(place, entry):
        raise ValueError(f"{place}: {problem}; {REMEDY}")
    return map_array(place, entry)


def map_splits(path: str | os.PathLike[str], book: PartitionBook) -> dict[str, dict[NodeType, Tensor]]:
    """Splits by name and node type, int64 global ids in the order of the whole graph's, mapped."""
    splits: dict[str, dict[NodeType, Tensor]] = {}
    for file in filter(layout.is_split, book.wholes):
        node_type, name = layout.split_of(file)
        splits.setdefault(name, {})[node_type] = map_whole(path, book, file)
    return splits


def _book(document: Mapping[str, Any]) -> PartitionBook:
    quality = document["quality"]
    shares = {name: tuple(map(float, of_parts)) for name, of_parts in quality["shares"].items()}
    book = PartitionBook(
        method=str(document["method"]),
        source=str(document["source"]),
        offsets={t: tuple(map(int, offsets)) for t, offsets in document["offsets"].items()},
        edge_offsets={t: tuple(map(int, offsets)) for t, offsets in document["edge_offsets"].items()},
        parts=tuple(map(str, document["parts"])),
        edge_digests={t: int(digest) for t, digest in document["edge_digests"].items()},
        quality=Quality(
            {t: float(share) for t, share in quality["cut"].items()}, shares, quality["remote_share"]
        ),
        wholes={
            file: ArrayEntry(e["dtype"], tuple(e["shape"]), int(e["bytes"]), str(e["sha256"]))
            for file, e in document["wholes"].items()
        },
    )
    for type_, offsets in [*book.offsets.items(), *book.edge_offsets.items()]:
        if len(offsets) != book.num_parts + 1 or list(offsets) != sorted(offsets) or offsets[0] != 0:
            raise ValueError(f"offsets of {type_!r} are {offsets}")
    return book
