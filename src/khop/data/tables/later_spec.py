"""Later tables: encoded with the encoders in a graph's record, by specs that are completed from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import TypeAdapter

from khop.arguments import toml_values
from khop.data.tables.encoders import ColumnEncoder, kind_of, restored, stored
from khop.data.tables.read_spec import nearest
from khop.data.tables.spec import AnyEdgeColumn, Column, EdgeRules, Label, NodeSpec, Raw, Source, Spec
from khop.graph.folder import DOCUMENT, LATER, Folder, import_record
from khop.graph.node_ids import LABEL_TIME, OwnIds, ids_in
from khop.graph.partitions.parts_folder import known_folder
from khop.graph.remote import local_path
from khop.kernels.id_table import Int64s, Keys
from khop.schema import EdgeType, NodeType

_RUN = "config.toml"  # the settings of a run, in its folder
_PLACE = ("name", "column")  # fields of a recorded column besides the state of its encoder


@dataclass(frozen=True, eq=False)
class GivenEncoders:
    """The record of an imported graph, by which later data are encoded like its tables."""

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
            raise ValueError(f"{path}: is later data; give the run or the graph from which its encoders come")
        return cls(path, folder, record)

    @property
    def sha256(self) -> str:
        """Digest of the encoders: equal for graphs with the same encoders."""
        return self.folder.documents[DOCUMENT]

    @property
    def identity(self) -> str:
        """Text that changes with the encoders and with the graph."""
        return f"{self.sha256} {self.folder.fingerprint}"

    def of(self, type_: NodeType | EdgeType) -> Mapping[str, Any]:
        """Return the record of a node type or an edge type."""
        of_nodes, of_edges = self.record["nodes"], self.record["edges"]
        found: Mapping[str, Any] = of_nodes[type_] if isinstance(type_, str) else of_edges[" ".join(type_)]
        return found

    def encoders(self, type_: NodeType | EdgeType) -> dict[str, ColumnEncoder]:
        """Return the encoders of a type by column, in the order of the features."""
        return {
            column["name"]: restored({name: value for name, value in column.items() if name not in _PLACE})
            for column in self.of(type_).get("columns", ())
        }

    def is_from_edges(self, node_type: NodeType) -> bool:
        """Return True for a type without a table, whose nodes are the ids that edges name."""
        return self.of(node_type)["id"].get("column") is None

    def rows(self, node_type: NodeType, keys: Keys) -> Int64s:
        """Return the node of the graph for each id, -1 for new ids.

        ValueError if the graph does not store ids of the type.
        """
        if not len(keys):
            return np.zeros(0, np.int64)
        if node_type not in self._ids:
            folder = self.folder
            count = folder.num_nodes(node_type)
            self._ids[node_type] = ids_in(folder.path, folder.arrays, node_type, count)
        ids = self._ids[node_type]
        return ids.index.find(ids.stored, keys)


def _graph_of(path: Path) -> Path:
    """Return the graph folder of a run folder, or the path itself."""
    settings = path / _RUN
    if not settings.is_file():
        return path
    try:
        graph = toml_values(settings).get("graph")
    except ValueError as error:
        raise ValueError(f"{error}; or give the graph folder of the run") from None
    found = local_path(graph) if isinstance(graph, str) else None
    if found is None or not found.is_dir():
        raise ValueError(f"{settings}: graph is {graph!r}: no such folder; give the graph folder of the run")
    return found


TIME = "time"  # the column of times, of nodes and edges
SPLIT = "split"  # edge column: 0 training, 1 validation, 2 test, -1 none
FEATURES, LABEL = "x", "label"
_FITTED = {"kind", "column", "limit", "min_count", "dtype"}  # not compared: names and limits of statistics
_TIME_FIELDS = ("time", "unit", "timezone", "time_format")
_ANY_COLUMN: TypeAdapter[Any] = TypeAdapter(AnyEdgeColumn)


def later_spec(spec: Spec, given: GivenEncoders) -> Spec:
    """Return the spec of later data with all columns of the graph's encoders; rows do not join a split.

    ValueError for a type, column, kind, option, label or time that the encoders do not have.
    """
    nodes = {node_type: _node_spec(node_type, node, given) for node_type, node in spec.nodes.items()}
    edges, tables = {}, {}
    for key, edge_type, rules, table in spec.edge_tables():
        edges[edge_type] = _edge_rules(key, edge_type, rules, given)
        tables[edge_type] = _time_fields(key, table, edge_type, given)
    update = {"time_unit": given.record["time_unit"], "splits": None, "nodes": nodes}
    return spec.model_copy(update=update).with_edges(edges, tables)


def has_splits(spec: Spec) -> bool:
    """Return True if a spec splits rows."""
    of_nodes = any(node.split is not None for node in spec.nodes.values())
    return spec.splits is not None or of_nodes or any(r.split is not None for _, r in spec.edge_types())


def _node_spec(node_type: NodeType, node: NodeSpec, given: GivenEncoders) -> NodeSpec:
    key, there = f"nodes.{node_type}", given.record["nodes"]
    if node_type not in there:
        raise ValueError(f"{key}: {given.home} has no such node type; {nearest(node_type, list(there))}")
    kind = "string" if there[node_type]["id"]["kind"] == "string" else "integer"
    update: dict[str, Any] = {"id_type": kind, "split": None}
    if node.has_rows:
        label = None if node.label is None else _label(f"{key}.label", node.label, node_type, given)
        update |= {"label": label, **_time_fields(key, node, node_type, given)}
        update["columns"] = _columns(key, node.columns, node_type, given)
    return node.model_copy(update=update)


def _edge_rules(key: str, edge_type: EdgeType, rules: EdgeRules, given: GivenEncoders) -> dict[str, Any]:
    name, there = " ".join(edge_type), given.record["edges"]
    reverses = given.folder.schema.reverse_of
    if name not in there and edge_type in reverses:
        raise ValueError(
            f"{key}: is the reverse of {' '.join(reverses[edge_type])!r} in {given.home}; give that type, "
            "its reverse follows"
        )
    if name not in there:
        raise ValueError(f"{key}: {given.home} has no such edge type; {nearest(name, list(there))}")
    reverse = reverses[edge_type][1] if edge_type in reverses else None
    if rules.reverse not in (None, reverse):
        has = "no reverse of this type" if reverse is None else f"the reverse {reverse!r}"
        raise ValueError(f"{key}.reverse is {rules.reverse!r}: {given.home} has {has}; leave it out")
    for end in (edge_type[0], edge_type[2]) if rules.orphans == "add" else ():
        if _has_times(end, given):
            raise ValueError(
                f'{key}.orphans is "add": nodes of {end!r} have times in {given.home}; give "drop", or the '
                "nodes with their times"
            )
    return {"reverse": reverse, "split": None, "columns": _columns(key, rules.columns, edge_type, given)}


def _columns(
    key: str, asked: Mapping[str, Column], type_: NodeType | EdgeType, given: GivenEncoders
) -> dict[str, Column]:
    """Return the recorded columns, in their order, by the names that the spec gives them in its files."""
    known = {one["name"]: _column_of(one) for one in given.of(type_).get("columns", ())}
    known |= _raw_columns(type_, given)
    for name, column in asked.items():
        path = f"{key}.columns.{name}"
        if name not in known:
            hint = nearest(name, list(known))
            raise ValueError(f"{path}: the encoders of {given.home} have no such column; {hint}; remove it")
        _check_equal(path, column, known[name], given)
    of_files = {
        name: {"column": one.column or name} | ({"missing": one.null_texts} if one.null_texts else {})
        for name, one in asked.items()
    }
    return {name: column.model_copy(update=of_files.get(name, {})) for name, column in known.items()}


def _check_equal(path: str, asked: Any, known: Any, given: GivenEncoders) -> None:
    """Raise ValueError for a kind or an option that differs from the encoder's."""
    if asked.kind != known.kind:
        raise ValueError(
            f'{path}: is a "{asked.kind}", but the encoders of {given.home} have a "{known.kind}"; remove '
            "the column from the spec, or give the same kind"
        )
    texts = {"missing"} if asked.null_texts else set[str]()  # only of this table
    for name in sorted(asked.model_fields_set - _FITTED - texts):
        if getattr(asked, name) != getattr(known, name):
            raise ValueError(
                f"{path}.{name} is {getattr(asked, name)!r}, and the encoders of {given.home} have "
                f"{getattr(known, name)!r}; leave it out"
            )


def _column_of(state: Mapping[str, Any]) -> Column:
    """Return the spec of a recorded column."""
    kind = kind_of(state)
    fields = {"kind": kind, "column": state.get("column", state["name"])}
    model = type(_ANY_COLUMN.validate_python({"kind": kind}))
    fields |= {name: state[name] for name in model.model_fields if name in state and name not in fields}
    column: Column = _ANY_COLUMN.validate_python(fields)
    return column


def _raw_columns(type_: NodeType | EdgeType, given: GivenEncoders) -> dict[str, Column]:
    """Return the columns that the graph stores unchanged; folders of earlier versions do not record names."""
    recorded = {one["name"]: one["column"] for one in given.of(type_).get("raw", ())}
    others = {TIME, SPLIT} if isinstance(type_, tuple) else {TIME, LABEL, LABEL_TIME, FEATURES, "original_id"}
    others |= {one["name"] for one in given.of(type_).get("columns", ())}
    return {
        name: Raw(kind="raw", column=recorded.get(name, name)).model_copy(update={"dtype": spec.dtype})
        for name, spec in given.folder.schema.columns.get(type_, {}).items()
        if name in recorded or name not in others
    }


def _has_times(type_: NodeType | EdgeType, given: GivenEncoders) -> bool:
    is_raw = TIME in {one["name"] for one in given.of(type_).get("raw", ())}
    return TIME in given.folder.schema.columns.get(type_, {}) and not is_raw


def _time_fields(
    key: str, source: Source, type_: NodeType | EdgeType, given: GivenEncoders
) -> dict[str, Any]:
    """Return the time column with its format, from the spec or the record."""
    record = given.of(type_)
    if not _has_times(type_, given):
        if source.time is not None:
            raise ValueError(
                f"{key}.time is {source.time!r}: these rows have no times in {given.home}; remove it"
            )
        return {}
    if source.time is not None:
        return {name: getattr(source, name) for name in _TIME_FIELDS}
    if TIME not in record:
        raise ValueError(f'{key}.time is missing: these rows have times in {given.home}; give time = "..."')
    return {name: record[TIME].get(name) for name in _TIME_FIELDS}


def _label(key: str, asked: Label, node_type: NodeType, given: GivenEncoders) -> Label:
    known = given.of(node_type).get(LABEL)
    if known is None:
        raise ValueError(f"{key}: {given.home} has no label of this type; remove it")
    if asked.kind != known["kind"]:
        raise ValueError(f'{key}.kind is "{asked.kind}", and {given.home} has a "{known["kind"]}"; give that')
    classes = None if asked.kind == "number" else tuple(known["classes"])
    if asked.classes not in (None, classes):
        there = nearest("", classes or ()).removeprefix("there are ")
        raise ValueError(f"{key}.classes differ from those of {given.home}, {there}; leave them out")
    if asked.time is not None and TIME not in known:
        raise ValueError(f"{key}.time is {asked.time!r}: labels have no dates in {given.home}; leave it out")
    time = asked.time or known.get(TIME)
    return asked.model_copy(update={"classes": classes, "unit": known["unit"], "time": time})


def record_of(
    source: Source, columns: Mapping[str, Column], encoders: Mapping[str, ColumnEncoder]
) -> dict[str, Any]:
    """Return the record of the columns and the times of a table, as JSON values."""
    places = {name: {"name": name, "column": one.column or name} for name, one in columns.items()}
    record: dict[str, Any] = {"columns": [{**places[name], **stored(one)} for name, one in encoders.items()]}
    if source.time is not None:
        record[TIME] = {name: getattr(source, name) for name in _TIME_FIELDS}
    if raws := [places[name] for name, one in columns.items() if isinstance(one, Raw)]:
        record["raw"] = raws
    return record
