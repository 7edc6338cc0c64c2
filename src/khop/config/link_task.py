"""Resolve the task of a link-prediction run against its graph."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import get_args

from khop.config.on_servers import cut_offs_of
from khop.config.parts import words_of
from khop.config.read import chosen
from khop.config.resolve_task import ResolveContext
from khop.config.tables import BuiltinTask
from khop.graph.import_record import TimeCutOffs
from khop.sampling.time_split import SPLIT, TIME
from khop.schema import ColumnSpec, EdgeType
from khop.training.link_prediction import LinkMetric


def resolved_link_task(task: BuiltinTask, context: ResolveContext) -> BuiltinTask:
    """Fill in the edge type and the metric. Raises ValueError if the graph lacks a requested item."""
    graph, raw = context.graph, context.raw
    if task.label is not None:
        where = raw.where("task.label")
        raise ValueError(f"task.label is {task.label!r}: links have no label column, leave it out ({where})")
    there = {words_of(edge_type): edge_type for edge_type in graph.schema.edge_types}
    target = chosen("task.target", task.target, there, "edge types", raw)
    metric = chosen("task.metric", task.metric or "mrr", get_args(LinkMetric), "metrics of links", raw)
    check_links(context, target, there[target])
    return task.model_copy(update={"target": target, "metric": metric})


def check_links(context: ResolveContext, target: str, edge_type: EdgeType) -> None:
    """Raise ValueError unless the run can split the links of an edge type, and knows their times."""
    config, graph, raw = context.config, context.graph, context.raw
    time, columns = config.sampler.time, graph.schema.columns.get(edge_type, {})
    if time is not None and time not in columns:
        raise ValueError(
            f"sampler.time is {time!r}: each link needs a time, and the columns of {target} are "
            f"{', '.join(columns) or 'none'} ({raw.where('sampler.time')})"
        )
    _check_relation(context, target, columns)
    if link_split(config.links.split, columns, cut_offs_of(graph)) == "random":
        _check_shares(context, graph.num_edges(edge_type), target)


def link_split(asked: str, columns: Collection[str], cut_offs: TimeCutOffs | None) -> str:
    """Return the split of links of an edge type with these columns: random, time or column."""
    if asked == "auto" and SPLIT in columns:
        return "column"
    if asked == "auto":
        return "time" if cut_offs is not None and TIME in columns else "random"
    if asked == "time" and cut_offs is None:
        raise ValueError(
            'links.split is "time": the graph has no cut-offs; import it with [splits] time = {...}, or give '
            '"random"'
        )
    return asked


def _check_relation(context: ResolveContext, target: str, columns: Mapping[str, ColumnSpec]) -> None:
    """Raise ValueError unless the column of relations has a whole number per link."""
    name, raw = context.config.links.relation, context.raw
    if name is None:
        return
    whole = [column for column, spec in columns.items() if "int" in spec.dtype and not spec.shape]
    if name not in whole:
        raise ValueError(
            f"links.relation is {name!r}: the columns of {target} with a whole number per link are "
            f"{', '.join(whole) or 'none'} ({raw.where('links.relation')})"
        )


def _check_shares(context: ResolveContext, count: int, target: str) -> None:
    """Raise ValueError for shares that leave a part of a random split empty."""
    links, raw = context.config.links, context.raw
    for name in ("val", "test"):
        share, where = getattr(links, name), raw.where(f"links.{name}")
        if int(count * share) == 0:
            raise ValueError(
                f"links.{name} is {share}: of {count} links of {target} that holds out none; "
                f"raise it ({where})"
            )
    if links.val + links.test >= 1:
        raise ValueError(
            f"links.val is {links.val} and links.test {links.test}: no training links are left; "
            f"lower them ({raw.where('links.val', 'links.test')})"
        )
