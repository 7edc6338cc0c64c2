"""Resolve the task of a link-prediction run against its graph."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence

from khop.config.fields import value_at
from khop.config.on_servers import cut_offs_of
from khop.config.parts import words_of
from khop.config.read import chosen
from khop.config.resolve_task import ResolveContext
from khop.config.tables import BuiltinTask
from khop.graph.import_record import TimeCutOffs
from khop.sampling.time_split import SPLIT, TIME
from khop.schema import ColumnSpec, EdgeType, Schema
from khop.training.link_prediction import LINK_METRIC_PATTERN, LINK_METRICS

_SPLITS = {"column": "by a column", "time": "by time", "random": "at random"}


def resolved_link_task(task: BuiltinTask, context: ResolveContext) -> BuiltinTask:
    """Fill in the edge types and the metric. Raises ValueError if the graph lacks a requested item."""
    graph, raw = context.graph, context.raw
    if task.label is not None:
        where = raw.where("task.label")
        raise ValueError(f"task.label is {task.label!r}: links have no label column, leave it out ({where})")
    there = {words_of(edge_type): edge_type for edge_type in graph.schema.edge_types}
    asked = [None] if task.target is None else [name.strip() for name in task.target.split(",")]
    targets = [chosen("task.target", name, there, "edge types", raw) for name in asked]
    target = ", ".join(targets)
    metric = task.metric or "mrr"
    if not re.fullmatch(LINK_METRIC_PATTERN, metric):
        names = ", ".join(LINK_METRICS)
        raise ValueError(
            f"task.metric is {metric!r}: the metrics of links are {names} ({raw.where('task.metric')})"
        )
    _check_several(context, target, [there[name] for name in targets])
    _check_hard(context, [there[name] for name in targets])
    for name in targets:
        check_links(context, name, there[name])
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


def targets_of(target: str | None, schema: Schema) -> tuple[EdgeType, ...]:
    """Return the edge types of a resolved `task.target`, in its order."""
    there = {words_of(edge_type): edge_type for edge_type in schema.edge_types}
    return tuple(there[name] for name in (target or "").split(", "))


def _check_several(context: ResolveContext, target: str, edge_types: Sequence[EdgeType]) -> None:
    """Raise ValueError unless links of these edge types can be split and trained together."""
    schema, raw = context.graph.schema, context.raw
    if len(set(edge_types)) < len(edge_types):
        raise ValueError(
            f"task.target is {target!r}: names an edge type twice; name it once ({raw.where('task.target')})"
        )
    backs = {edge_type: schema.reverse(edge_type) for edge_type in edge_types}
    for edge_type, back in backs.items():
        if back is not None and back != edge_type and back in backs:
            raise ValueError(
                f"task.target is {target!r}: {words_of(back)} has the edges of {words_of(edge_type)} turned "
                f"around; name one of them ({raw.where('task.target')})"
            )
    columns = {t: schema.columns.get(t, {}) for t in edge_types}
    try:
        links_split(context.config.links.split, columns, cut_offs_of(context.graph))
    except ValueError as error:
        raise ValueError(f"{error} ({raw.where('links.split')})") from None


def _check_hard(context: ResolveContext, targets: Sequence[EdgeType]) -> None:
    """Raise ValueError unless hard negatives, by a search among all destinations, fit the run."""
    config, raw = context.config, context.raw
    count, path = config.links.hard_negatives, "links.hard_negatives"
    unfit = {
        "links.decoder": config.links.decoder == "mlp"
        and "a search for the highest scores takes inner products or distances, as the other decoders have",
        "links.relation": config.links.relation is not None
        and "a table has a row for each source, and not for each of its relations",
        "links.corrupt": config.links.corrupt != "destination" and "hard negatives replace destinations",
        "servers.addresses": bool(config.servers.addresses) and "servers do not have their table",
        "device": config.device != "cpu" and "their table is in memory of the CPU",
    }
    for other, reason in unfit.items() if count else ():
        if reason:
            raise ValueError(
                f"{path} is {count} and {other} is {value_at(config, other)!r}: {reason}; leave one of them "
                f"out ({raw.where(path, other)})"
            )
    destination = min((t[2] for t in targets), key=context.graph.num_nodes)
    nodes = context.graph.num_nodes(destination)
    if count > nodes:
        raise ValueError(
            f"{path} is {count}: there are {nodes} nodes of {destination!r} to take them from; give at most "
            f"this number ({raw.where(path)})"
        )


def links_split(asked: str, columns: Mapping[EdgeType, Collection[str]], cut_offs: TimeCutOffs | None) -> str:
    """Return the split of links of edge types with these columns: all are split in one way."""
    found = {t: link_split(asked, of_type, cut_offs) for t, of_type in columns.items()}
    (first, split), *others = found.items()
    for other, another in others:
        if another != split:
            raise ValueError(
                f'links.split is "{asked}": links of {words_of(first)} are split {_SPLITS[split]}, those of '
                f'{words_of(other)} {_SPLITS[another]}; give "random", or edge types with equal splits'
            )
    return split


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
