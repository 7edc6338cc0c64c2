"""File layout of a graph folder.

Only this module turns names into paths.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

from khop.schema import EdgeType, NodeType

MANIFEST = "graph.json"
BOOK = "partition.json"  # the partition book: a partitioned folder has it instead of graph.json
SNAPSHOTS = "snapshots"  # the folder of snapshots of a graph that was appended to
SNAPSHOT_RECORD = "snapshots.json"  # names them; the last one is the graph
LONGEST_NAME = 80  # three of them and two separators fit the 255 bytes of a file name
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")


def check_names(names: Iterable[str], what: str) -> None:
    """Raise ValueError unless the names are valid file names on every system and do not collide.

    "__" separates the parts of an edge type's folder name, so no name may contain it.
    """
    names = list(names)
    for name in names:
        if not isinstance(name, str):
            raise ValueError(f"{what} {name!r}: must be text, as it becomes a file name")
    _check_twins(names, what)
    for name in names:
        if not _NAME.fullmatch(name) or "__" in name or len(name) > LONGEST_NAME:
            raise ValueError(
                f"{what} {name!r}: becomes a file name, use letters and digits with single '_', '.' or '-' "
                f"between them, {LONGEST_NAME} characters at most"
            )


def is_plain(name: str) -> bool:
    """Return True for a path of "/" that stays in its folder: without empty, hidden and parent folders."""
    return all(part and not part.startswith(".") for part in name.split("/"))


def check_plain(names: Iterable[str]) -> None:
    """Raise ValueError for a file of a folder that is outside it, or hidden."""
    for name in names:
        if not is_plain(name):
            raise ValueError(f"{name!r}: is not a path below the folder")


def check_edge_types(edge_types: Iterable[EdgeType]) -> None:
    """Raise ValueError unless the edge types are valid folder names and do not collide."""
    edge_types = list(edge_types)
    for edge_type in edge_types:
        if not isinstance(edge_type, tuple) or len(edge_type) != 3:
            raise ValueError(
                f'edge type {edge_type!r}: give three names, as ("user", "buys", "item"): source, relation, '
                "destination"
            )
        for part in edge_type:
            check_names([part], f"edge type {edge_type}: part")
    _check_twins(("__".join(edge_type) for edge_type in edge_types), "edge type")


def node_column(node_type: NodeType, name: str) -> str:
    """Return the file of a node column, relative to the folder."""
    return f"nodes/{node_type}/{name}.npy"


def node_split(node_type: NodeType, name: str) -> str:
    """Return the file of a split, relative to the folder."""
    return f"{node_splits(node_type)}/{name}.npy"


def is_split(file: str) -> bool:
    """Return True if a file holds a split."""
    return file.startswith("nodes/") and file.split("/")[2] == "splits"


def split_of(file: str) -> tuple[NodeType, str]:
    """Return the node type and the name of a split from its file."""
    _, node_type, _, name = file.split("/")
    return node_type, name.removesuffix(".npy")


def node_ids(node_type: NodeType, name: str) -> str:
    """Return the file of an array of a node type's ids, relative to the folder."""
    return f"nodes/{node_type}/ids/{name}.npy" if name else f"nodes/{node_type}/ids"


def node_splits(node_type: NodeType) -> str:
    """Return the folder of a node type's splits, relative to the graph's folder."""
    return f"nodes/{node_type}/splits"


def edge_array(edge_type: EdgeType, name: str) -> str:
    """Return the file of `indptr`, `indices` or `edge_id`, relative to the folder."""
    return f"edges/{'__'.join(edge_type)}/{name}.npy"


def edge_column(edge_type: EdgeType, name: str) -> str:
    """Return the file of an edge column, relative to the folder."""
    return edge_array(edge_type, f"columns/{name}")


def is_partitioned(path: str | os.PathLike[str]) -> bool:
    """Return True if a folder holds a partitioned graph."""
    return (Path(path) / BOOK).is_file()


def part_name(part: int) -> str:
    """Return the folder of a partition, relative to the partitioned graph's folder."""
    return f"part-{part:04d}"


def _check_twins(names: Iterable[str], what: str) -> None:
    seen: dict[str, str] = {}
    for name in names:
        twin = seen.setdefault(name.lower(), name)
        if twin != name:
            raise ValueError(
                f"{what} {name!r}: {twin!r} differs only in case and would share its file; rename one"
            )


def owner_of(path: Path) -> Path | None:
    """Return the graph folder that a path is a snapshot of; None for other paths."""
    graph = path.absolute().parent.parent
    is_named = path.absolute().parent.name == SNAPSHOTS
    return graph if is_named and (graph / SNAPSHOT_RECORD).is_file() else None
