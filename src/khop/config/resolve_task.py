"""Resolve the task of a run over labels of nodes against its graph."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from torch import Tensor

from khop.config.on_servers import GraphOnServers
from khop.config.read import RawRun, chosen
from khop.config.tables import ClassificationTable, MultiLabelTable, RegressionTable, TaskTable
from khop.config.values import RunConfig
from khop.graph.folder import Folder
from khop.partition.parts_folder import PartsFolder
from khop.schema import ColumnSpec, NodeType, Schema
from khop.training.metrics import METRICS
from khop.training.multi_label_metrics import MULTI_LABEL_METRICS, UNKNOWN, entries_of
from khop.training.number_metrics import REGRESSION_METRICS

AnyTask = TypeVar("AnyTask", bound=TaskTable)
LABEL = "label"  # the column of labels that an import writes
SPLIT_FIELDS = ("train_split", "val_split", "test_split")


@dataclass(frozen=True, eq=False)
class ResolveContext:
    """Inputs of a task's `resolve`, which fills in open settings before any process is started."""

    config: RunConfig
    graph: Folder
    raw: RawRun  # for errors: `raw.where(path)` names the file or option


def resolved_node_task(task: ClassificationTable, context: ResolveContext) -> ClassificationTable:
    """Fill in node type, label and metric. Raises ValueError if the graph lacks a requested item."""
    return _resolved(task, context, METRICS, _Labels(_labels, _unlabeled_node))


def resolved_regression(task: RegressionTable, context: ResolveContext) -> RegressionTable:
    """Fill in node type, label and metric. Raises ValueError if the graph lacks a requested item."""
    return _resolved(task, context, REGRESSION_METRICS, _Labels(partial(_numbers, task.label), _no_number))


def resolved_multi_label(task: MultiLabelTable, context: ResolveContext) -> MultiLabelTable:
    """Fill in node type, label and metric. Raises ValueError if the graph lacks a requested item."""
    return _resolved(
        task, context, MULTI_LABEL_METRICS, _Labels(partial(_label_sets, task.label), _no_label_set)
    )


@dataclass(frozen=True)
class _Labels:
    """The label columns that a task can have, and the check of a split."""

    columns: Callable[[Schema, NodeType], Mapping[str, ColumnSpec]]
    problem: Callable[[Tensor, Tensor, NodeType, str], str | None]  # nodes, all labels, type and column


def _resolved(task: AnyTask, context: ResolveContext, metrics: Iterable[str], labels: _Labels) -> AnyTask:
    graph, raw = context.graph, context.raw
    metric = chosen("task.metric", task.metric or next(iter(metrics)), metrics, "metrics of nodes", raw)
    found = {node_type: labels.columns(graph.schema, node_type) for node_type in graph.schema.node_types}
    labeled = {node_type: columns for node_type, columns in found.items() if columns}
    if not labeled:
        _refuse_other_labels(context)
    target = chosen("task.target", task.target, labeled, "node types with labels", raw)
    label = chosen("task.label", task.label, labeled[target], f"label columns of {target}", raw)
    for field in SPLIT_FIELDS:
        _check_split(field, getattr(task, field), context, (target, label), labels)
    return task.model_copy(update={"target": target, "label": label, "metric": metric})


def _refuse_other_labels(context: ResolveContext) -> None:
    """Raise ValueError that names the task for the labels that a graph has, if they are of another one."""
    schema, own = context.graph.schema, context.config.task.kind
    kinds: dict[str, Callable[[Schema, NodeType], Mapping[str, ColumnSpec]]] = {
        "node-classification": _labels,
        "node-regression": partial(_numbers, None),
        "multi-label": partial(_label_sets, None),
    }
    for kind, columns in kinds.items():
        for node_type in schema.node_types:
            label = next((name for name in (LABEL, "y") if name in columns(schema, node_type)), None)
            if label is not None and kind != own:
                raise ValueError(
                    f"task.kind is {own!r}, and the labels in the column {label!r} of {node_type!r} are of "
                    f"another kind: give --task {kind} ({context.raw.where('task.kind')})"
                )


def with_node_defaults(task: TaskTable, schema: Schema) -> TaskTable:
    """Fill in node type and label of a task from outside, where the graph has only one; else leave them open.

    The node types with labels come first; a graph without labels may have one node type.
    """
    labeled = [node_type for node_type in schema.node_types if _labels(schema, node_type)]
    target = task.target or _only(labeled or schema.node_types)
    label = task.label or _only(() if target is None else _labels(schema, target))
    return task.model_copy(update={"target": target, "label": label})


def _only(names: Iterable[str]) -> str | None:
    first, *others = [*names, None]
    return None if len(others) > 1 else first


def _labels(schema: Schema, node_type: NodeType) -> dict[str, ColumnSpec]:
    columns = schema.columns.get(node_type, {})
    return {name: spec for name, spec in columns.items() if spec.num_classes is not None}


def _numbers(asked: str | None, schema: Schema, node_type: NodeType) -> dict[str, ColumnSpec]:
    """Return the columns that regression can predict; if none is asked for, the ones of a number per node."""
    columns = _unclassed(schema, node_type)
    if asked is not None:
        return {name: spec for name, spec in columns.items() if len(spec.shape) < 2}
    found = {name: spec for name, spec in columns.items() if not spec.shape and spec.dtype != "bool"}
    return {LABEL: found[LABEL]} if LABEL in found else found


def _label_sets(asked: str | None, schema: Schema, node_type: NodeType) -> dict[str, ColumnSpec]:
    """Return the columns of an entry per label; if none is asked for, the ones that are not floats."""
    found = {name: spec for name, spec in _unclassed(schema, node_type).items() if len(spec.shape) == 1}
    if asked is None:
        found = {name: spec for name, spec in found.items() if "float" not in spec.dtype}
    return {LABEL: found[LABEL]} if asked is None and LABEL in found else found


def _unclassed(schema: Schema, node_type: NodeType) -> dict[str, ColumnSpec]:
    columns = schema.columns.get(node_type, {})
    return {name: spec for name, spec in columns.items() if spec.num_classes is None and spec.scales is None}


def _check_split(
    field: str, name: str, context: ResolveContext, label: tuple[NodeType, str], labels: _Labels
) -> None:
    graph, (target, column) = context.graph, label
    having = [split for split in graph.split_names if target in graph.split(split)]
    where = context.raw.where(f"task.{field}")
    if name not in having:
        raise ValueError(
            f"task.{field} is {name!r}: the splits of {target} are {', '.join(having) or 'none'} ({where})"
        )
    lies_in_parts = isinstance(graph, PartsFolder) and graph.schema.column(target, column).shape
    if isinstance(graph, GraphOnServers) or lies_in_parts:
        return  # not at hand: evaluation names nodes without labels
    problem = labels.problem(graph.split(name)[target], graph.columns()[target][column], target, column)
    if problem is not None:
        raise ValueError(f"task.{field} is {name!r}: {problem} ({where})")


def _unlabeled_node(nodes: Tensor, labels: Tensor, target: NodeType, column: str) -> str | None:
    missing = nodes[labels[nodes] < 0]
    if not missing.numel():
        return None
    return (
        f"node {int(missing[0])} of {target} in it has no {column}, its label is -1; leave such nodes out of "
        "the split"
    )


def _no_number(nodes: Tensor, labels: Tensor, target: NodeType, column: str) -> str | None:
    if not labels[nodes].isnan().all():
        return None
    return f"no node of {target} in it has a known {column}; give it nodes with labels"


def _no_label_set(nodes: Tensor, labels: Tensor, target: NodeType, column: str) -> str | None:
    if (entries_of(labels[nodes]) != UNKNOWN).any():
        return None
    return f"no node of {target} in it has a known {column}; give it nodes with labels"
