"""A `Data` or `HeteroData` as storages by type: the only place that tells the two classes apart."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch_geometric.data import Data, HeteroData
from torch_geometric.data.storage import BaseStorage

from khop.schema import EdgeType, NodeType

NODE = "node"  # the types of a graph without types
EDGE = (NODE, "to", NODE)
DATA_KINDS = (Data, HeteroData)

Key = NodeType | EdgeType | None  # None: for a graph without types


@dataclass(frozen=True, eq=False)
class TypedData:
    """The nodes and edges of a data object by type; a `Data` has the types NODE and EDGE."""

    nodes: Mapping[NodeType, Any]  # storages, or the `Data` itself
    edges: Mapping[EdgeType, Any]
    is_typed: bool

    @classmethod
    def of(cls, data: object) -> TypedData | None:
        """Return the storages of a data object; None for stores and all other objects."""
        match data:
            case HeteroData():
                return cls(dict(data.node_items()), dict(data.edge_items()), is_typed=True)
            case Data():
                return cls({NODE: data}, {EDGE: data}, is_typed=False)
        return None


def storages(data: Any) -> Iterator[tuple[Key, BaseStorage]]:
    """Yield the storages of a data object, by type; a `Data` has one for nodes and edges, under None."""
    if isinstance(data, Data):
        yield None, data._store
        return
    yield from data.node_items()
    yield from data.edge_items()


def owner_of(data: Any, owner: Key) -> Any:
    """Return the object that holds the attributes of a type."""
    return data if owner is None else data[owner]
