"""Resolve the task of a run over labels of edges against its graph."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from khop.config.link_task import check_links
from khop.config.parts import words_of
from khop.config.read import chosen
from khop.config.resolve_task import LABEL, ResolveContext
from khop.config.tables import EdgeClassificationTable, RegressionTable, TaskTable
from khop.config.values import Links
from khop.sampling.time_split import SPLIT, TIME
from khop.schema import ColumnSpec
from khop.training.metrics import METRICS
from khop.training.number_metrics import REGRESSION_METRICS

AnyTask = TypeVar("AnyTask", bound=TaskTable)
_OF_SPLITS = {"split", "val", "test"}  # settings of links that runs over labels of edges have


def resolved_edge_classification(
    task: EdgeClassificationTable, context: ResolveContext
) -> EdgeClassificationTable:
    """Fill in edge type, label and metric. Raises ValueError if the graph lacks a requested item."""
    return _resolved(task, context, METRICS, _is_class)


def resolved_edge_regression(task: RegressionTable, context: ResolveContext) -> RegressionTable:
    """Fill in edge type, label and metric. Raises ValueError if the graph lacks a requested item."""
    return _resolved(task, context, REGRESSION_METRICS, _is_number)


def _resolved(
    task: AnyTask, context: ResolveContext, metrics: Iterable[str], fits: Callable[[ColumnSpec], bool]
) -> AnyTask:
    schema, raw = context.graph.schema, context.raw
    _check_unused(context)
    metric = chosen("task.metric", task.metric or next(iter(metrics)), metrics, "metrics of edges", raw)
    kept = {SPLIT, TIME, context.config.sampler.time, context.config.sampler.weight}
    labeled = {
        edge_type: [name for name, spec in columns.items() if fits(spec) and name not in kept]
        for edge_type in schema.edge_types
        if (columns := schema.columns.get(edge_type, {}))
    }
    there = {words_of(edge_type): edge_type for edge_type, names in labeled.items() if names}
    if not there:
        raise ValueError(
            f"task.kind is {task.kind!r}: no edge type has a column that fits; give the edges a column of "
            f"labels ({raw.where('task.kind')})"
        )
    target = chosen("task.target", task.target, there, "edge types with labels", raw)
    names = labeled[there[target]]
    names = [LABEL] if task.label is None and LABEL in names else names
    label = chosen("task.label", task.label, names, f"label columns of {target}", raw)
    check_links(context, target, there[target])
    return task.model_copy(update={"target": target, "label": label, "metric": metric})


def _check_unused(context: ResolveContext) -> None:
    """Raise ValueError for settings of scored links, which labels of edges do not use."""
    links, raw = context.config.links, context.raw
    for name, field in Links.model_fields.items():
        if name not in _OF_SPLITS and getattr(links, name) != field.default:
            raise ValueError(
                f"links.{name} is {getattr(links, name)!r}: the task {context.config.task.kind} scores no "
                f"pairs and draws no negatives; leave it out ({raw.where(f'links.{name}')})"
            )


def _is_class(spec: ColumnSpec) -> bool:
    return not spec.shape and "int" in spec.dtype and spec.scales is None


def _is_number(spec: ColumnSpec) -> bool:
    return len(spec.shape) < 2 and spec.dtype != "bool" and spec.scales is None
