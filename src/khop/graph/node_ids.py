"""The users' ids of nodes, class names and units of labels, as stored in a graph folder."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from khop.arguments import shown, whole
from khop.errors import REMEDY
from khop.graph import layout
from khop.graph.folder import DOCUMENT, LATER, Folder, import_record, refuse_replaced
from khop.graph.manifest import Manifest
from khop.graph.npy import ArrayEntry, map_numpy
from khop.kernels.id_table import Int64s, KeyIndex, Keys, Kind, StringKeys, id_table, keys_at
from khop.schema import EdgeType, NodeType

STRING, INTEGER = "string", "int64"
_CHECKED_AT_ONCE = 1 << 18
_LEAST = -(1 << 63)
_INTEGER = re.compile(r"0|-?[1-9][0-9]*")


@dataclass(frozen=True, eq=False)
class OwnIds:
    """Bidirectional mapping between nodes and ids of one type, memory-mapped: a look-up reads a few pages.

    Args:
        node_type: The node type.
        stored: Ids by node.
        index: Index from ids to nodes.
        home: Location of the ids, for errors.
    Example:
        >>> nodes = {"user": khop.NodeTable(ids=["ann", "bob"])}
        >>> ids = khop.open_ids(khop.write_graph(tmp / "graph", nodes, {}), "user")
        >>> ids.rows(["bob", "eve"]), ids.ids([0])
        (array([ 1, -1]), ['ann'])
    """

    node_type: NodeType
    stored: Keys
    index: KeyIndex
    home: str

    def __len__(self) -> int:
        return len(self.stored)

    def rows(self, ids: Sequence[str] | Sequence[int] | Int64s) -> Int64s:
        """Return the node of each id, -1 for unknown ids.

        Args:
            ids: Ids; those of integer tables may also be given as text, as on the command line.
        """
        try:
            return self.index.find(self.stored, self._keys(list(ids)))
        except ValueError as error:
            if hasattr(error, "array"):
                raise ValueError(f"{self.home}: {error}; {REMEDY}") from error
            raise

    def ids(self, rows: Sequence[int] | Int64s) -> list[str] | list[int]:
        """Return the id of each node; ValueError for a node that does not exist.

        Args:
            rows: Nodes, integers of Python, NumPy or torch.
        """
        wanted = _integers(rows)
        if wanted is None:
            raise ValueError(f"nodes {shown(rows)}: give whole numbers")
        outside = np.flatnonzero((wanted < 0) | (wanted >= len(self)))
        if len(outside):
            raise ValueError(
                f"node {wanted[outside[0]]}: there are {len(self):,} {self.node_type!r} nodes, 0 to "
                f"{len(self) - 1}"
            )
        if isinstance(self.stored, StringKeys):
            return [self.stored.bytes_at(int(row)).decode() for row in wanted]
        return [int(self.stored[row]) for row in wanted]

    def _keys(self, ids: Sequence[Any]) -> Keys:
        if isinstance(self.stored, StringKeys):
            for id_ in ids:
                if not isinstance(id_, str):
                    raise ValueError(f"id {id_!r}: ids of {self.node_type!r} are text; give it in quotes")
            return StringKeys.of(list(ids))
        return np.array([self._integer(id_) for id_ in ids], np.int64)

    def _integer(self, id_: str | int) -> int:
        """Return an id in its stored form. "007", 7.9 and True are not the id 7."""
        is_written = isinstance(id_, str) and _INTEGER.fullmatch(id_) is not None
        number = int(id_) if is_written else _integer(id_)
        if number is not None and _LEAST <= number <= -_LEAST - 1:
            return number
        raise ValueError(f"id {id_!r}: ids of {self.node_type!r} are integers of 64 bits; correct it")


def _integer(value: object) -> int | None:
    """Return an integer of Python, NumPy or torch as an int; None for other values."""
    return whole(value.item() if isinstance(value, Tensor) and not value.ndim else value)


def _integers(values: Sequence[Any] | npt.NDArray[Any]) -> npt.NDArray[Any] | None:
    """Return integers as a vector, those beyond 64 bits unchanged; None if a value is not an integer."""
    if hasattr(values, "__array__") and (array := np.asarray(values)).dtype != object:
        return array if array.ndim == 1 and (array.dtype.kind in "iu" or not len(array)) else None
    found = [_integer(value) for value in values]
    return None if None in found else np.array(found, object)


def first_lost(ids: OwnIds) -> int:
    """Return the first node whose id does not map back to it, or -1."""
    for first in range(0, len(ids), _CHECKED_AT_ONCE):
        keys = ids.stored[first : first + _CHECKED_AT_ONCE]
        found = ids.index.find(ids.stored, keys)
        wrong = np.flatnonzero(found != np.arange(first, first + len(keys)))
        if len(wrong):
            return first + int(wrong[0])
    return -1


def stored_ids(folder: Folder) -> dict[NodeType, Keys]:
    """Return the ids of a graph by node type, mapped, for those types whose ids are stored."""
    refuse_replaced(folder)
    having = [t for t in folder.schema.node_types if stores_ids(folder, t)]
    return {t: ids_in(folder.path, folder.arrays, t, folder.num_nodes(t)).stored for t in having}


def ids_of(folder: Path, manifest: Manifest, node_type: NodeType) -> OwnIds:
    """Map the ids of a node type of a graph folder; ValueError if they are not stored."""
    return ids_in(folder, manifest.arrays, node_type, manifest.node(node_type).count)


def ids_in(folder: Path, arrays: Mapping[str, ArrayEntry], node_type: NodeType, count: int) -> OwnIds:
    """Map the ids of a node type from the arrays of a graph; ValueError if they are not stored."""
    kind = _kind(arrays, node_type)
    if not kind:
        raise ValueError(
            f"{folder}: ids of {node_type!r} are not stored; its nodes are 0 to {count - 1}. Import "
            'the graph without ids = "none", or give NodeTable(ids=...)'
        )

    def mapped(name: str) -> npt.NDArray[Any]:
        file = layout.node_ids(node_type, name)
        if not (folder / file).is_file():
            raise ValueError(f"{folder / file}: is not on this machine; copy it here")
        return map_numpy(folder / file, arrays[file])

    stored: Keys = StringKeys(mapped("offsets"), mapped("bytes")) if kind == STRING else mapped("keys")
    index = KeyIndex(mapped("buckets"), mapped("rows"), mapped("tags"))
    return OwnIds(node_type, stored, index, str(folder / layout.node_ids(node_type, "")))


def stores_ids(folder: Folder, node_type: NodeType) -> bool:
    """Return True if a graph stores the ids of a node type, also if their files are on another machine."""
    return bool(_kind(folder.arrays, node_type))


def _kind(arrays: Mapping[str, ArrayEntry], node_type: NodeType) -> str:
    """Return the kind of the stored ids of a type; "" if none are stored."""
    first = {"bytes": STRING, "keys": INTEGER}
    return next((kind for name, kind in first.items() if layout.node_ids(node_type, name) in arrays), "")


class IdsByNode(Protocol):
    """Implementers return the users' ids of a type's nodes, from memory, files or servers."""

    @property
    def kind(self) -> Kind:
        """Type of the ids: text or integers."""
        ...

    def at(self, nodes: Tensor) -> Keys:
        """Return the ids of nodes, int64 (n), in order. Only these ids are read into memory."""
        ...


@dataclass(frozen=True, eq=False)
class IdsHere:
    """Ids in the memory of this process, or mapped from a file."""

    keys: Keys  # by node

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def kind(self) -> Kind:
        """Type of the ids."""
        return "string" if isinstance(self.keys, StringKeys) else "int64"

    def at(self, nodes: Tensor) -> Keys:
        """Return the ids of nodes."""
        return keys_at(self.keys, nodes.numpy())


LABEL, LABEL_TIME = "label", "label_time"  # the columns of labels and of their dates that an import writes
UNDATED = -(1 << 63)  # time of a node without one, and of a label without a date


@dataclass(frozen=True, eq=False)
class Names:
    """The users' names by node type, for the types that have them."""

    ids: Mapping[NodeType, IdsByNode] = field(default_factory=dict)
    labels: Mapping[NodeType, Mapping[str, Any]] = field(default_factory=dict)  # as import.json has them
    original_ids: Mapping[NodeType, IdsByNode] = field(default_factory=dict)  # before nodes were renumbered

    @classmethod
    def of(cls, folder: Folder | None) -> Names:
        """Return the names that a graph folder stores, mapped; None: there are no names."""
        if folder is None:
            return cls()
        ids = {t: IdsHere(keys) for t, keys in stored_ids(folder).items()}
        originals = {t: folder.original_ids(t) for t in folder.schema.node_types}
        renumbered = {t: IdsHere(of_type.numpy()) for t, of_type in originals.items() if of_type is not None}
        return cls(ids, label_records(folder), renumbered)


def recorded_columns(folder: Folder, edge_type: EdgeType) -> tuple[str, str] | None:
    """Return the columns with the ids of sources and destinations in the imported table of an edge type.

    The table of the reverse type has the same ids, swapped. None if no table is recorded.
    """
    tables: Mapping[str, Any] = import_record(folder).get("edges", {})
    reverse = folder.schema.reverse(edge_type)
    for name, first, second in ((edge_type, "source", "destination"), (reverse, "destination", "source")):
        found = tables.get(" ".join(name or ()))
        if found is not None:
            return found[first], found[second]
    return None


def label_records(folder: Folder) -> dict[NodeType, Mapping[str, Any]]:
    """Return the label records of an import by node type: class names and units."""
    nodes: Mapping[NodeType, Mapping[str, Any]] = import_record(folder).get("nodes", {})
    return {t: of_type[LABEL] for t, of_type in nodes.items() if LABEL in of_type}


GivenIds = Sequence[str] | npt.NDArray[Any] | Tensor | StringKeys
_INDEX_BYTES = 12  # per key: its row, its tag, its share of the buckets


def given_ids(ids: GivenIds, where: str) -> Keys:
    """Return ids as keys; ValueError unless they are text or integers of 64 bits."""
    if isinstance(ids, StringKeys):
        return ids
    values = ids.detach().cpu().numpy() if isinstance(ids, Tensor) else _array(ids)
    if values.ndim != 1:
        raise ValueError(f"{where}: ids have shape {values.shape}: give one per node")
    if np.issubdtype(values.dtype, np.integer) and np.can_cast(values.dtype, np.int64):
        return np.ascontiguousarray(values, np.int64)
    texts = values.tolist()
    for row, text in enumerate(texts):
        if not isinstance(text, str):
            raise ValueError(f"{where}: ids[{row}] is {text!r}: ids are text or integers of 64 bits")
    return StringKeys.of(texts)


def _array(ids: Any) -> npt.NDArray[Any]:  # noqa: ANN401
    """Return ids as an array. NumPy's text arrays would drop NULs at the end of an id."""
    is_text = isinstance(ids, list | tuple) and len(ids) > 0 and isinstance(ids[0], str)
    return np.array(ids, object) if is_text else np.asarray(ids)


def kind_of(keys: Keys) -> Kind:
    """Return the kind of keys, as graph.json names it."""
    return "string" if isinstance(keys, StringKeys) else "int64"


def check_distinct(keys: Keys, count: int, where: str) -> None:
    """Raise ValueError unless there is one distinct key per node."""
    if len(keys) != count:
        raise ValueError(f"{where} has {count:,} nodes and {len(keys):,} ids; give one id per node")
    table = id_table(kind_of(keys), count)
    second = table.append(keys)
    if second >= 0:
        first = int(table.find(keys[second : second + 1])[0])
        shown = keys[second : second + 1].strings()[0] if isinstance(keys, StringKeys) else int(keys[second])
        raise ValueError(
            f"{where}: ids[{second}] is {shown!r}, and so is ids[{first}]: an id names one node; remove one"
        )


def index_bytes(keys: Keys) -> int:
    """Estimate the bytes of the keys and their index on disk."""
    return keys.nbytes + _INDEX_BYTES * len(keys)


def check_encoders(base: Folder, later: Folder) -> Mapping[str, Any]:
    """Return the record of later data; ValueError unless its encoders are those of the graph."""
    record = import_record(later).get(LATER)
    if record is None:
        raise ValueError(
            f"{later.path}: was not imported with --encoders; run khop import SPEC.toml OUT --encoders RUN"
        )
    if base.documents.get(DOCUMENT) != record["encoders"]:
        raise ValueError(
            f"{later.path}: its encoders differ from those of {base.path}, the graph of the run; import it "
            "again with --encoders RUN"
        )
    found: Mapping[str, Any] = record
    return found


def joined_nodes(base: Folder, later: Folder) -> dict[NodeType, Tensor]:
    """Return the node of the joined graph for each later node, int64: of the graph, or after its nodes.

    ValueError for other encoders, and for a row of a later table with the id of a node of the graph.
    """
    rows = check_encoders(base, later)["rows"]
    places = {}
    for node_type in later.schema.node_types:
        count = base.num_nodes(node_type)
        found = _found(base, node_type, later_ids(later, node_type))
        known = np.flatnonzero(found[: rows.get(node_type, 0)] >= 0)
        if len(known):
            own = ids_in(later.path, later.arrays, node_type, len(found)).ids(known[:1])[0]
            raise ValueError(
                f"{later.path}: {node_type} {own!r} is already a node of {base.path}; import only the new "
                "nodes"
            )
        is_new = found < 0
        places[node_type] = torch.from_numpy(np.where(is_new, count - 1 + np.cumsum(is_new), found))
    return places


def nodes_in(before: Folder, now: Folder, node_type: NodeType) -> Int64s:
    """Return for each node of a type in `now` the node of `before` with the same id; -1 for new nodes.

    Ids are the users' ids where both graphs store them, else the ids before nodes were renumbered. ValueError
    if one graph has ids of text and the other one integers.
    """
    count = now.num_nodes(node_type)
    if node_type not in before.schema.node_types:
        return np.full(count, -1, np.int64)
    kinds = [_kind(each.arrays, node_type) for each in (before, now)]
    if not all(kinds):
        return _nodes_by_original_id(before, now, node_type)
    if kinds[0] != kinds[1]:
        raise ValueError(
            f"ids of {node_type!r} are {kinds[0]} in {before.path} and {kinds[1]} in {now.path}; import the "
            "table with ids of one kind"
        )
    own = ids_in(before.path, before.arrays, node_type, before.num_nodes(node_type))
    stored = ids_in(now.path, now.arrays, node_type, count).stored
    found = np.empty(count, np.int64)
    for first in range(0, count, _CHECKED_AT_ONCE):
        last = min(count, first + _CHECKED_AT_ONCE)
        found[first:last] = own.index.find(own.stored, stored[first:last])
    return found


def _nodes_by_original_id(before: Folder, now: Folder, node_type: NodeType) -> Int64s:
    ids = [each.original_ids(node_type) for each in (before, now)]
    counts = [each.num_nodes(node_type) for each in (before, now)]
    old, new = (torch.arange(n) if of is None else of for n, of in zip(counts, ids, strict=True))
    if not old.numel():
        return np.full(counts[1], -1, np.int64)
    ordered, order = old.sort()
    at = torch.searchsorted(ordered, new).clamp(max=old.numel() - 1)
    return torch.where(ordered[at] == new, order[at], -1).numpy()


def later_ids(later: Folder, node_type: NodeType) -> Keys:
    """Return the ids of the later nodes of a type; ValueError if they are not stored."""
    return ids_in(later.path, later.arrays, node_type, later.num_nodes(node_type)).stored


def _found(base: Folder, node_type: NodeType, keys: Keys) -> Int64s:
    """Return the node of the graph for each id; -1 for new ids, or if the graph does not store ids."""
    refuse_replaced(base)
    if not stores_ids(base, node_type):
        return np.full(len(keys), -1, np.int64)
    own = ids_in(base.path, base.arrays, node_type, base.num_nodes(node_type))
    return own.index.find(own.stored, keys)
