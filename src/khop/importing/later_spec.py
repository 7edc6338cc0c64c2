"""Specs of later data: columns, times, labels and reverses are completed from the record of the graph."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pydantic import TypeAdapter

from khop.importing.column_spec import AnyEdgeColumn, Column, Raw
from khop.importing.given_encoders import GivenEncoders
from khop.importing.read_spec import nearest
from khop.importing.spec import EdgeRules, Label, NodeSpec, Source, Spec
from khop.schema import EdgeType, NodeType, edge_type_of

TIME, LABEL, SPLIT, FEATURES = "time", "label", "split", "x"  # columns of a graph that are no raw ones
_KINDS = {
    "BooleanEncoder": "bool",
    "CategoryEncoder": "category",
    "DateEncoder": "date",
    "NumberEncoder": "number",
    "RelationEncoder": "relation",
    "TextEncoder": "text",
    "VectorEncoder": "vector",
    "WordsEncoder": "words",
}
_FITTED = {"kind", "column", "limit", "min_count", "dtype"}  # not compared: names, and limits of statistics
_TIME_FIELDS = ("time", "unit", "timezone", "time_format")
_ANY_COLUMN: TypeAdapter[Any] = TypeAdapter(AnyEdgeColumn)


def later_spec(spec: Spec, given: GivenEncoders) -> Spec:
    """Return the spec of later data with all columns that the graph's encoders have; no rows join a split.

    ValueError for a type, column, kind, option, label or time that the encoders do not know.
    """
    nodes = {node_type: _node_spec(node_type, node, given) for node_type, node in spec.nodes.items()}
    edges = {}
    for name, edge in spec.edges.items():
        key, edge_type = f'edges."{name}"', edge_type_of(name)
        rules = _edge_rules(key, edge_type, edge, given)
        times = _time_fields(key, edge, edge_type, given.edges(edge_type), given)
        edges[name] = edge.model_copy(update=rules | times)
    tables = []
    for number, table in enumerate(spec.edges_from):
        typed, times = [], dict[str, Any]()
        for at, one in enumerate(table.edges):
            key, edge_type = f"edges_from[{number}].edges[{at}]", edge_type_of(one.type)
            typed.append(one.model_copy(update=_edge_rules(key, edge_type, one, given)))
            times |= _time_fields(key, table, edge_type, given.edges(edge_type), given)
        tables.append(table.model_copy(update={"edges": tuple(typed), **times}))
    unit = given.record["time_unit"]
    return spec.model_copy(
        update={
            "time_unit": unit,
            "splits": None,
            "nodes": nodes,
            "edges": edges,
            "edges_from": tuple(tables),
        }
    )


def has_splits(spec: Spec) -> bool:
    """Return True if a spec splits any rows."""
    of_nodes = any(node.split is not None for node in spec.nodes.values())
    return spec.splits is not None or of_nodes or any(r.split is not None for _, r in spec.edge_types())


def _node_spec(node_type: NodeType, node: NodeSpec, given: GivenEncoders) -> NodeSpec:
    key, there = f"nodes.{node_type}", given.record["nodes"]
    if node_type not in there:
        raise ValueError(f"{key}: {given.home} has no such node type; {nearest(node_type, list(there))}")
    record = there[node_type]
    kind = "string" if record["id"]["kind"] == "string" else "integer"
    update: dict[str, Any] = {"id_type": kind, "split": None}
    if node.has_rows:
        label = None if node.label is None else _label(f"{key}.label", node.label, record, given)
        update |= {"label": label, **_time_fields(key, node, node_type, record, given)}
        update["columns"] = _columns(key, node.columns, record, _raw_columns(node_type, record, given), given)
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
    if rules.orphans == "add":
        _check_added(key, edge_type, given)
    raws = _raw_columns(edge_type, there[name], given)
    columns = _columns(key, rules.columns, there[name], raws, given)
    return {"reverse": reverse, "split": None, "columns": columns}


def _check_added(key: str, edge_type: EdgeType, given: GivenEncoders) -> None:
    for end in (edge_type[0], edge_type[2]):
        if _has_times(end, given.nodes(end), given):
            raise ValueError(
                f'{key}.orphans is "add": nodes of {end!r} have times in {given.home}; give "drop", or the '
                "nodes with their times"
            )


def _columns(
    key: str,
    asked: Mapping[str, Column],
    record: Mapping[str, Any],
    raws: Mapping[str, Column],
    given: GivenEncoders,
) -> dict[str, Column]:
    """Return the recorded columns, in their order, by the names that the spec gives them in its files."""
    known = {one["name"]: _column_of(one) for one in record.get("columns", ())} | dict(raws)
    for name, column in asked.items():
        path = f"{key}.columns.{name}"
        if name not in known:
            hint = nearest(name, list(known))
            raise ValueError(
                f"{path}: the encoders of {given.home} have no such column; {hint}; leave it out"
            )
        _check_equal(path, column, known[name], given)
    named = {name: column.column or name for name, column in asked.items()}
    return {
        name: column.model_copy(update={"column": named.get(name, column.column)})
        for name, column in known.items()
    }


def _check_equal(path: str, asked: Any, known: Any, given: GivenEncoders) -> None:
    """Raise ValueError for a kind or an option that differs from the encoder's."""
    if asked.kind != known.kind:
        raise ValueError(
            f'{path}: is a "{asked.kind}", and the encoders of {given.home} have a "{known.kind}"; leave the '
            "column out of the spec, or give the same kind"
        )
    for name in sorted(asked.model_fields_set - _FITTED):
        if getattr(asked, name) != getattr(known, name):
            raise ValueError(
                f"{path}.{name} is {getattr(asked, name)!r}, and the encoders of {given.home} have "
                f"{getattr(known, name)!r}; leave it out"
            )


def _column_of(state: Mapping[str, Any]) -> Column:
    """Return the spec of a recorded column."""
    kind = "multi" if state.get("several") == "lists" else _KINDS[state["encoder"]]
    fields = {"kind": kind, "column": state.get("column", state["name"])}
    model = type(_ANY_COLUMN.validate_python({"kind": kind}))
    fields |= {name: state[name] for name in model.model_fields if name in state and name not in fields}
    column: Column = _ANY_COLUMN.validate_python(fields)
    return column


def _raw_columns(
    type_: NodeType | EdgeType, record: Mapping[str, Any], given: GivenEncoders
) -> dict[str, Column]:
    """Return the columns that the graph stores unchanged; folders of earlier versions do not record names."""
    recorded = {one["name"]: one["column"] for one in record.get("raw", ())}
    encoded = {one["name"] for one in record.get("columns", ())}
    own = {TIME, SPLIT} if isinstance(type_, tuple) else {TIME, LABEL, FEATURES, "original_id"}
    names = [n for n in given.folder.schema.columns.get(type_, {}) if n in recorded or n not in own | encoded]
    specs = given.folder.schema.columns.get(type_, {})
    return {
        name: Raw(kind="raw", column=recorded.get(name, name)).model_copy(update={"dtype": specs[name].dtype})
        for name in names
    }


def _has_times(type_: NodeType | EdgeType, record: Mapping[str, Any], given: GivenEncoders) -> bool:
    is_raw = TIME in {one["name"] for one in record.get("raw", ())}
    return TIME in given.folder.schema.columns.get(type_, {}) and not is_raw


def _time_fields(
    key: str,
    source: Source,
    type_: NodeType | EdgeType,
    record: Mapping[str, Any],
    given: GivenEncoders,
) -> dict[str, Any]:
    """Return the time column with its format: that of the spec, else the recorded one."""
    if not _has_times(type_, record, given):
        if source.time is not None:
            raise ValueError(
                f"{key}.time is {source.time!r}: these rows have no times in {given.home}; leave it out"
            )
        return {}
    if source.time is not None:
        return {name: getattr(source, name) for name in _TIME_FIELDS}
    if TIME not in record:
        raise ValueError(f'{key}.time is missing: these rows have times in {given.home}; give time = "..."')
    return {name: record[TIME].get(name) for name in _TIME_FIELDS}


def _label(key: str, asked: Label, record: Mapping[str, Any], given: GivenEncoders) -> Label:
    known = record.get(LABEL)
    if known is None:
        raise ValueError(f"{key}: {given.home} has no label of this type; leave it out")
    if asked.kind != known["kind"]:
        raise ValueError(f'{key}.kind is "{asked.kind}", and {given.home} has a "{known["kind"]}"; give that')
    classes = None if asked.kind == "number" else tuple(known["classes"])
    if asked.classes not in (None, classes):
        raise ValueError(
            f"{key}.classes differ from those of {given.home}, {_few(classes or ())}; leave them out"
        )
    return asked.model_copy(update={"classes": classes, "unit": known["unit"]})


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:10]) + (f" and {len(names) - 10} more" if len(names) > 10 else "")


def time_record(source: Source) -> dict[str, Any]:
    """Return the record of the time column of a table; {} without one."""
    if source.time is None:
        return {}
    return {TIME: {name: getattr(source, name) for name in _TIME_FIELDS}}


def raw_record(columns: Mapping[str, Column]) -> dict[str, Any]:
    """Return the record of columns that are stored unchanged; {} without any."""
    raws: Iterable[tuple[str, Column]] = ((n, one) for n, one in columns.items() if isinstance(one, Raw))
    found = [{"name": name, "column": one.column or name} for name, one in raws]
    return {"raw": found} if found else {}
