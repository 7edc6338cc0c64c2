"""Resolve the task of a link-prediction run against its graph."""

from __future__ import annotations

from typing import get_args

from khop.config.parts import words_of
from khop.config.read import chosen
from khop.config.resolve_task import ResolveContext
from khop.config.tables import BuiltinTask
from khop.training.link_prediction import LinkMetric


def resolved_link_task(task: BuiltinTask, context: ResolveContext) -> BuiltinTask:
    """Fill in the edge type and the metric. Raises ValueError if the graph lacks a requested item."""
    config, graph, raw = context.config, context.graph, context.raw
    links = config.links
    if task.label is not None:
        where = raw.where("task.label")
        raise ValueError(f"task.label is {task.label!r}: links have no label column, leave it out ({where})")
    there = {words_of(edge_type): edge_type for edge_type in graph.schema.edge_types}
    target = chosen("task.target", task.target, there, "edge types", raw)
    metric = chosen("task.metric", task.metric or "mrr", get_args(LinkMetric), "metrics of links", raw)
    time, columns = config.sampler.time, graph.schema.columns.get(there[target], {})
    if time is not None and time not in columns:
        raise ValueError(
            f"sampler.time is {time!r}: each link needs a time, and the columns of {target} are "
            f"{', '.join(columns) or 'none'} ({raw.where('sampler.time')})"
        )
    for name in ("val", "test"):
        share, where = getattr(links, name), raw.where(f"links.{name}")
        if int(graph.num_edges(there[target]) * share) == 0:
            raise ValueError(
                f"links.{name} is {share}: of {graph.num_edges(there[target])} links of {target} that holds "
                f"out none; raise it ({where})"
            )
    if links.val + links.test >= 1:
        raise ValueError(
            f"links.val is {links.val} and links.test {links.test}: no training links are left; "
            f"lower them ({raw.where('links.val', 'links.test')})"
        )
    return task.model_copy(update={"target": target, "metric": metric})
