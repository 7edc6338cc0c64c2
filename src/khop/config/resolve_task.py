"""Resolve the task of a node-classification run against its graph."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from torch import Tensor

from khop.config.on_servers import GraphOnServers
from khop.config.read import RawRun, chosen
from khop.config.tables import BuiltinTask, TaskTable
from khop.config.values import RunConfig
from khop.graph.folder import Folder
from khop.schema import ColumnSpec, NodeType, Schema
from khop.training.metrics import METRICS

SPLIT_FIELDS = ("train_split", "val_split", "test_split")


@dataclass(frozen=True, eq=False)
class ResolveContext:
    """Inputs of a task's `resolve`, which fills in open settings before any process is started."""

    config: RunConfig
    graph: Folder
    raw: RawRun  # for errors: `raw.where(path)` names the file or option


def resolved_node_task(task: BuiltinTask, context: ResolveContext) -> BuiltinTask:
    """Fill in node type, label and metric. Raises ValueError if the graph lacks a requested item."""
    graph, raw = context.graph, context.raw
    schema = graph.schema
    metric = chosen("task.metric", task.metric or "accuracy", METRICS, "metrics of nodes", raw)
    labeled = {node_type: labels for node_type in schema.node_types if (labels := _labels(schema, node_type))}
    target = chosen("task.target", task.target, labeled, "node types with labels", raw)
    label = chosen("task.label", task.label, labeled[target], f"label columns of {target}", raw)
    for field in SPLIT_FIELDS:
        _check_split(field, getattr(task, field), graph, (target, label), raw)
    return task.model_copy(update={"target": target, "label": label, "metric": metric})


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


def _check_split(field: str, name: str, graph: Folder, label: tuple[NodeType, str], raw: RawRun) -> None:
    target, column = label
    having = [split for split in graph.split_names if target in graph.split(split)]
    where = raw.where(f"task.{field}")
    if name not in having:
        raise ValueError(
            f"task.{field} is {name!r}: the splits of {target} are {', '.join(having) or 'none'} ({where})"
        )
    if isinstance(graph, GraphOnServers):
        return  # evaluation names nodes without labels: the lists of splits stay on the servers
    nodes = graph.split(name)[target]
    unlabeled = _first_unlabeled(nodes, graph.columns()[target][column])
    if unlabeled is not None:
        raise ValueError(
            f"task.{field} is {name!r}: node {unlabeled} of {target} in it has no {column}, its label is "
            f"-1; leave such nodes out of the split ({where})"
        )


def _first_unlabeled(nodes: Tensor, labels: Tensor) -> int | None:
    missing = nodes[labels[nodes] < 0]
    return int(missing[0]) if missing.numel() else None
