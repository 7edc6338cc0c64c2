"""The users' names in a graph: ids of nodes, class names and units of labels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from khop.graph.folder import Folder
from khop.graph.ids_by_node import IdsByNode, IdsHere
from khop.graph.import_record import import_record
from khop.graph.node_ids import stored_ids
from khop.schema import NodeType

LABEL = "label"  # the column of labels that an import writes


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


def label_records(folder: Folder) -> dict[NodeType, Mapping[str, Any]]:
    """Return what an import has recorded of the labels, by node type: class names and units."""
    nodes: Mapping[NodeType, Mapping[str, Any]] = import_record(folder).get("nodes", {})
    return {t: of_type[LABEL] for t, of_type in nodes.items() if LABEL in of_type}
