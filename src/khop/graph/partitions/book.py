"""The partition book, stored as partition.json: id ranges of the parts, and the source graph."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from khop.errors import REMEDY, unread
from khop.graph import layout
from khop.graph.manifest import fingerprint
from khop.graph.npy import ArrayEntry, flush
from khop.schema import EdgeType, NodeType

if TYPE_CHECKING:  # torch takes seconds to import, and `khop info` does not need it
    from torch import Tensor

BOOK = layout.BOOK
DEGREES = "degrees"  # name of the in-degree array of each edge type, see `PartitionBook.wholes`
FORMAT = "khop-partition"
VERSION = 2


@dataclass(frozen=True)
class Quality:
    """Quality measures of a partition."""

    # Share of edges between parts, by edge type ("source__relation__destination") and for "all".
    cut: Mapping[str, float]
    shares: Mapping[str, tuple[float, ...]]  # by balanced quantity: load of each part / its equal share
    remote_share: float | None = None  # expected share of remote nodes in a batch; None: not computed


@dataclass(frozen=True)
class PartitionBook:
    """Description of a partitioned graph, the same in all processes regardless of their parts.

    Ids are global: within each type, the nodes of part 0 come first, then the nodes of part 1, and so on.
    Edge positions are global as well: the edges of part 0 come first, in the order of that part.
    """

    method: str
    source: str  # the fingerprint of the graph that was partitioned
    offsets: Mapping[NodeType, tuple[int, ...]]  # (parts + 1) for each type
    edge_offsets: Mapping[str, tuple[int, ...]]  # (parts + 1), by edge type as in `Quality.cut`
    parts: tuple[str, ...]  # the fingerprint of each part's folder
    # By edge type as in `Quality.cut`: the digest of all edges by original ids, see digest.py.
    edge_digests: Mapping[str, int]
    quality: Quality
    # By file, relative to the folder: the arrays of all nodes that every machine has, see wholes.py.
    wholes: Mapping[str, ArrayEntry] = field(default_factory=dict)
    documents: Mapping[str, str] = field(default_factory=dict)  # JSON files next to the parts: name -> sha256

    @property
    def num_parts(self) -> int:
        """The number of parts."""
        return len(self.parts)

    @property
    def fingerprint(self) -> str:
        """The fingerprint of the partitioned graph: equal for equal content, regardless of the path."""
        return fingerprint(_content(self))

    def first_edges(self, edge_type: EdgeType) -> tuple[int, ...]:
        """Return (parts + 1) positions: the first edge of a type in each part, then the number of edges."""
        if edge_key(edge_type) not in self.edge_offsets:
            there = [tuple(key.split("__")) for key in self.edge_offsets]
            raise ValueError(f"no edge type {edge_type!r}; there are {there}")
        return self.edge_offsets[edge_key(edge_type)]

    def owner(self, node_type: NodeType, ids: Tensor) -> Tensor:
        """Return the part of each global id: int64, in the shape of `ids`."""
        import torch

        ends = torch.tensor(self.offsets[node_type][1:])
        return torch.searchsorted(ends, ids, right=True)


def part_folder(path: Path, part: int) -> Path:
    """Return the folder of a part."""
    return path / layout.part_name(part)


def edge_key(edge_type: EdgeType) -> str:
    """Return the name of an edge type in partition.json."""
    return "__".join(edge_type)


def write_book(folder: Path, book: PartitionBook) -> None:
    """Write partition.json and flush it. It has to be the last file written to the folder."""
    with (folder / BOOK).open("wb") as file:
        document = {**_content(book), "fingerprint": book.fingerprint}
        file.write(json.dumps(document, indent=1).encode("ascii") + b"\n")
        flush(file)


def _content(book: PartitionBook) -> dict[str, Any]:
    content = {"format": FORMAT, "version": VERSION, **asdict(book)}
    if not book.documents:  # same bytes as in khop versions without documents
        del content["documents"]
    return content


def read_book(path: str | os.PathLike[str]) -> PartitionBook:
    """Read partition.json. Raises ValueError if it is missing, damaged or written by a newer khop."""
    file = Path(path) / BOOK
    if not file.is_file():
        raise ValueError(
            f"{Path(path)}: not a partitioned graph, or unfinished: {BOOK} is missing; "
            "write one with khop partition"
        )
    try:
        document: dict[str, Any] = json.loads(file.read_bytes())
        claimed = document.pop("fingerprint")
        if (document["format"], document["version"]) != (FORMAT, VERSION):
            found = f"format {document['format']!r} {document['version']}"
            raise ValueError(f"{found}, this khop reads {FORMAT!r} {VERSION}")
        if claimed != fingerprint(document):
            raise ValueError("the fingerprint does not match the content")
        return _book(document)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"{file}: not what khop writes ({unread(error)}); {REMEDY}") from error


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
        documents={str(name): str(sha256) for name, sha256 in document.get("documents", {}).items()},
    )
    layout.check_plain([*book.wholes, *book.documents])
    for type_, offsets in [*book.offsets.items(), *book.edge_offsets.items()]:
        if len(offsets) != book.num_parts + 1 or list(offsets) != sorted(offsets) or offsets[0] != 0:
            raise ValueError(f"offsets of {type_!r} are {offsets}")
    return book
