"""Nodes of later data in the graph that they are joined to, by the users' ids."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from khop.graph.folder import Folder, refuse_replaced
from khop.graph.import_record import DOCUMENT, LATER, import_record
from khop.graph.node_ids import ids_in
from khop.kernels.id_table import Int64s, Keys
from khop.schema import NodeType


def check_encoders(base: Folder, later: Folder) -> Mapping[str, Any]:
    """Return the record of later data; ValueError unless they have the encoders of a graph."""
    record = import_record(later).get(LATER)
    if record is None:
        raise ValueError(
            f"{later.path}: is no later data; import its tables with the encoders of the run: khop import "
            "SPEC.toml OUT --encoders RUN"
        )
    if base.documents.get(DOCUMENT) != record["encoders"]:
        raise ValueError(
            f"{later.path}: has other encoders than {base.path}, the graph of the run; import it again with "
            "--encoders RUN"
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
                f"{later.path}: {node_type} {own!r} is a node of {base.path} already; import the new nodes "
                "alone"
            )
        is_new = found < 0
        places[node_type] = torch.from_numpy(np.where(is_new, count - 1 + np.cumsum(is_new), found))
    return places


def later_ids(later: Folder, node_type: NodeType) -> Keys:
    """Return the ids of the later nodes of a type; ValueError if they are not stored."""
    return ids_in(later.path, later.arrays, node_type, later.num_nodes(node_type)).stored


def _found(base: Folder, node_type: NodeType, keys: Keys) -> Int64s:
    """Return the node of the graph with each id, -1 for new ids, and where the graph stores no ids."""
    refuse_replaced(base)
    try:
        own = ids_in(base.path, base.arrays, node_type, base.num_nodes(node_type))
    except ValueError:
        return np.full(len(keys), -1, np.int64)
    return own.index.find(own.stored, keys)
