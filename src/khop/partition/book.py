"""partition.json as a value: which part owns which ids, and what the parts were made of."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from khop.graph import layout
from khop.graph.manifest import REMEDY, fingerprint
from khop.graph.npy import ArrayEntry, flush
from khop.schema import EdgeType, NodeType

if TYPE_CHECKING:  # torch takes seconds to import, and `khop info` needs none of it
    from torch import Tensor

BOOK = layout.BOOK
DEGREES = "degrees"  # the array of in-degrees, of every edge type, among the wholes
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
        import torch

        ends = torch.tensor(self.offsets[node_type][1:])
        return torch.searchsorted(ends, ids, right=True)


def part_folder(path: Path, part: int) -> Path:
    """Where a part lies."""
    return path / layout.part_name(part)


def edge_key(edge_type: EdgeType) -> str:
    """The name of an edge type in partition.json."""
    return "__".join(edge_type)


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
