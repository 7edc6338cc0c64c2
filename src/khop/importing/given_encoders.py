"""Encoders, classes, unit and ids of an imported graph, for tables of later data."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from khop.graph.folder import Folder
from khop.graph.import_record import DOCUMENT, LATER, import_record
from khop.graph.node_ids import OwnIds, ids_in
from khop.importing.encoder import Encoder
from khop.importing.encoders import restored
from khop.kernels.id_table import Int64s, Keys
from khop.partition.parts_folder import known_folder
from khop.schema import EdgeType, NodeType

_RUN = "config.toml"  # the settings of a run, in its folder
_PLACE = ("name", "column")  # fields of a recorded column beside the state of its encoder


@dataclass(frozen=True, eq=False)
class GivenEncoders:
    """The record of an imported graph: later data are encoded as its own tables were."""

    home: Path  # as the user gave it, for errors
    folder: Folder
    record: Mapping[str, Any]
    _ids: dict[NodeType, OwnIds] = field(default_factory=dict)

    @classmethod
    def open(cls, path: Path) -> GivenEncoders:
        """Open a graph folder, whole or partitioned, or the graph of a run folder.

        ValueError if the graph was not imported from tables, or is later data itself.
        """
        folder = known_folder(_graph_of(path))
        record = import_record(folder)
        if not record:
            raise ValueError(
                f"{path}: the graph has no encoders; give a graph that khop import SPEC.toml has written, or "
                "a run on one"
            )
        if LATER in record:
            raise ValueError(
                f"{path}: is later data itself; give the run or the graph that its encoders come from"
            )
        return cls(path, folder, record)

    @property
    def sha256(self) -> str:
        """Digest of the encoders: equal for graphs with the same ones."""
        return self.folder.documents[DOCUMENT]

    @property
    def identity(self) -> str:
        """Text that changes with the encoders and with the graph."""
        return f"{self.sha256} {self.folder.fingerprint}"

    def nodes(self, node_type: NodeType) -> Mapping[str, Any]:
        """Return the record of a node type."""
        found: Mapping[str, Any] = self.record["nodes"][node_type]
        return found

    def edges(self, edge_type: EdgeType) -> Mapping[str, Any]:
        """Return the record of an edge type."""
        found: Mapping[str, Any] = self.record["edges"][" ".join(edge_type)]
        return found

    def node_encoders(self, node_type: NodeType) -> dict[str, Encoder]:
        """Return the encoders of a node type by column, in the order of their numbers."""
        return _restored(self.nodes(node_type))

    def edge_encoders(self, edge_type: EdgeType) -> dict[str, Encoder]:
        """Return the encoders of an edge type by column."""
        return _restored(self.edges(edge_type))

    def is_from_edges(self, node_type: NodeType) -> bool:
        """Return True for a type without a table: its nodes are the ids that edges name."""
        return self.nodes(node_type)["id"].get("column") is None

    def rows(self, node_type: NodeType, keys: Keys) -> Int64s:
        """Return the node of the graph that has each id, -1 for new ids.

        ValueError if the graph stores no ids of the type.
        """
        if not len(keys):
            return np.zeros(0, np.int64)
        if node_type not in self._ids:
            folder = self.folder
            count = folder.num_nodes(node_type)
            self._ids[node_type] = ids_in(folder.path, folder.arrays, node_type, count)
        ids = self._ids[node_type]
        return ids.index.find(ids.stored, keys)

    def stores_ids(self, node_type: NodeType) -> bool:
        """Return True if the graph stores the ids of a type."""
        try:
            ids_in(self.folder.path, self.folder.arrays, node_type, self.folder.num_nodes(node_type))
        except ValueError:
            return False
        return True


def _restored(record: Mapping[str, Any]) -> dict[str, Encoder]:
    return {
        column["name"]: restored({name: value for name, value in column.items() if name not in _PLACE})
        for column in record.get("columns", ())
    }


def _graph_of(path: Path) -> Path:
    """Return the graph folder of a run folder, or the path itself."""
    settings = path / _RUN
    if not settings.is_file():
        return path
    try:
        graph = tomllib.loads(settings.read_text(encoding="utf-8")).get("graph")
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{settings}: not TOML: {error}; give the graph folder of the run") from None
    if not isinstance(graph, str) or not Path(graph).is_dir():
        raise ValueError(f"{settings}: graph is {graph!r}: no such folder; give the graph folder of the run")
    return Path(graph)
