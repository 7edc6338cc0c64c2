"""Names of a spec that become files of the folder: valid on every system, and each given once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from khop.graph.layout import check_edge_types, check_names
from khop.importing.column_spec import AnyEdgeColumn, Raw, Words
from khop.importing.edge_reader import SPLIT
from khop.importing.node_columns import FEATURES, LABEL, TIME
from khop.importing.spec import EdgeRules, NodeSpec, Spec
from khop.schema import EdgeType, edge_type_of


def check_file_names(spec: Spec) -> None:
    """Raise ValueError for a name that is no file name, and for a column with the name of another array."""
    check_names(spec.nodes, "node type")
    reverses = [(t[2], rules.reverse, t[0]) for t, rules in spec.edge_types() if rules.reverse is not None]
    check_edge_types([*(edge_type for edge_type, _ in spec.edge_types()), *reverses])
    for node_type, node in spec.nodes.items():
        _check(_stored(node), _of_nodes(node), f"nodes.{node_type}")
    for edge_type, rules, time in _edges(spec):
        _check(rules.columns, _of_edges(rules, time), f"edge type {' '.join(edge_type)!r}")


def _stored(node: NodeSpec) -> Mapping[str, AnyEdgeColumn]:
    """Return the columns with a file of their own; the others are joined to features."""
    return {name: column for name, column in node.columns.items() if isinstance(column, Raw | Words)}


def _of_nodes(node: NodeSpec) -> dict[str, str]:
    """Return the arrays of a node type beside its columns, by name."""
    features = {FEATURES: "features"} if len(_stored(node)) < len(node.columns) else {}
    labels = {} if node.label is None else {LABEL: "labels"}
    times = {} if node.time is None else {TIME: "times"}
    return features | labels | times


def _of_edges(rules: EdgeRules, time: str | None) -> dict[str, str]:
    """Return the arrays of an edge type beside its columns, by name."""
    splits = {} if rules.split is None else {SPLIT: "splits"}
    return splits if time is None else {**splits, TIME: "times"}


def _edges(spec: Spec) -> Iterator[tuple[EdgeType, EdgeRules, str | None]]:
    for name, edge in spec.edges.items():
        yield edge_type_of(name), edge, edge.time
    for table in spec.edges_from:
        for typed in table.edges:
            yield edge_type_of(typed.type), typed, table.time


def _check(columns: Mapping[str, AnyEdgeColumn], taken: Mapping[str, str], key: str) -> None:
    check_names(columns, f"column of {key}")
    for name in columns:
        if name in taken:
            raise ValueError(
                f"{key}.columns.{name}: the {taken[name]} are stored by this name; give the column another "
                f'one, as columns.own-{name} = {{ column = "{name}", ... }}'
            )
