"""Resolution of a run's task against its graph: classes, splits, edge types and metrics."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from annotated_types import Ge, Lt
from pydantic import Field
from torch import Tensor

from khop.api.open_graph import Graph
from khop.components import LINK_PREDICTION, TASKS, Allowed, Default
from khop.graph.folder import Folder, TimeCutOffs
from khop.graph.node_ids import LABEL
from khop.graph.partitions.parts_folder import PartsFolder
from khop.run.parts import GraphOnServers, cut_offs_of, words_of
from khop.run.read import RawRun, chosen, value_in
from khop.run.run_type import fields_of, value_at
from khop.run.tables import TaskTable
from khop.run.values import RunConfig, SeedFiles
from khop.sampling.links.link_split import SPLIT, TIME
from khop.schema import ColumnSpec, EdgeType, NodeType, Schema
from khop.training.edge_tasks import check_task_metric, is_full_metric
from khop.training.metrics import METRICS, REGRESSION_METRICS
from khop.training.multi_label_metrics import MULTI_LABEL_METRICS, UNKNOWN, entries_of
from khop.training.tasks import ClassLoss, ClassLossKind

if TYPE_CHECKING:
    from khop.run.seed_tables import SeedTables

LINKS_SPLIT = "split of links"  # name of the fact: random, time or column
SPLIT_FIELDS = ("train_split", "val_split", "test_split")


@dataclass(frozen=True, eq=False)
class ResolveContext:
    """Inputs of a task's `resolve`, which fills in open settings before any process is started."""

    config: RunConfig
    graph: Folder
    raw: RawRun  # for errors: `raw.where(path)` names the file or option


@dataclass(frozen=True)
class MetricOptions:
    """Options of a task over classes or links, as set by a run."""

    metric: Annotated[
        str | None,
        Field(
            pattern=r"^(accuracy|f1-macro|f1-micro|roc-auc|average-precision|mrr|"
            r"(hits|recall|ndcg|map)@[1-9][0-9]{0,17})$"
        ),
        Allowed(
            "one of accuracy, f1-macro, f1-micro, roc-auc, average-precision, mrr, and hits@K, recall@K, "
            "ndcg@K and map@K for a whole number K"
        ),
        Default("accuracy for nodes, mrr for links"),
    ] = None
    """Metric of evaluation. For classes: accuracy, f1-macro, f1-micro, roc-auc or average-precision. For
    regression: rmse, mae or r2. For links: roc-auc, average-precision, mrr, or hits, recall, ndcg or map
    among the first K, such as hits@50"""


@dataclass(frozen=True)
class ClassOptions(MetricOptions):
    """Options of a task over classes, as set by a run."""

    loss: ClassLossKind = "cross-entropy"
    """Loss: cross-entropy, or focal loss, which gives confident predictions less weight (focal)"""
    gamma: Annotated[float, Ge(0), Lt(1000)] = 2.0
    """Exponent gamma of the focal loss. A larger number gives confident predictions less weight"""
    class_weights: Literal["none", "balanced"] = "none"
    """Weights of the classes in the loss: equal (none), or inversely proportional to the number of training
    seeds of each class (balanced). Use balanced if some classes are rare"""
    label_smoothing: Annotated[float, Ge(0), Lt(1)] = 0.0
    """Label smoothing: share of the target probability that is spread over all classes, e.g. 0.1"""

    @property
    def class_loss(self) -> ClassLoss:
        """The loss without class weights."""
        return ClassLoss(self.loss, None, self.label_smoothing, self.gamma)


@dataclass(frozen=True)
class NumberOptions:
    """Options of regression, as set by a run."""

    metric: Annotated[Literal["rmse", "mae", "r2"] | None, Default("rmse")] = None
    """Metric of evaluation"""
    loss: Literal["mse", "mae"] = "mse"
    """Loss: squared error (mse) or absolute error (mae)"""
    standardize: Literal["train", "none"] = "train"
    """Train on labels that are standardized over the training split (train), or on unchanged labels (none).
    In both cases, outputs and scores are in the unit of the labels. Custom models require none, because khop
    cannot rescale their outputs"""


def resolved_classes(_: object, context: ResolveContext) -> TaskTable:
    """Fill in node type, label and metric. Raises ValueError if the graph lacks a requested item."""
    return _resolved(context, METRICS, _Labels(_labels, _unlabeled_node))


def resolved_numbers(_: object, context: ResolveContext) -> TaskTable:
    """Fill in node type, label and metric. Raises ValueError if the graph lacks a requested item."""
    label = context.config.task.label
    return _resolved(context, REGRESSION_METRICS, _Labels(partial(_numbers, label), _no_number))


def resolved_label_sets(_: object, context: ResolveContext) -> TaskTable:
    """Fill in node type, label and metric. Raises ValueError if the graph lacks a requested item."""
    label = context.config.task.label
    return _resolved(context, MULTI_LABEL_METRICS, _Labels(partial(_label_sets, label), _no_label_set))


@dataclass(frozen=True)
class _Labels:
    """The label columns that a task can have, and the check of a split."""

    columns: Callable[[Schema, NodeType], Mapping[str, ColumnSpec]]
    problem: Callable[[Tensor, Tensor, NodeType, str], str | None]  # nodes, all labels, node type and column


def _resolved(context: ResolveContext, metrics: Iterable[str], labels: _Labels) -> TaskTable:
    task, graph, raw = context.config.task, context.graph, context.raw
    metric = chosen("task.metric", task.metric or next(iter(metrics)), metrics, "metrics of nodes", raw)
    if context.config.seeds.train is not None:
        target = chosen("task.target", task.target, graph.schema.node_types, "node types", raw)
        return task.model_copy(update={"target": target, "label": task.label or LABEL, "metric": metric})
    found = {node_type: labels.columns(graph.schema, node_type) for node_type in graph.schema.node_types}
    labeled = {node_type: columns for node_type, columns in found.items() if columns}
    if not labeled:
        _refuse_other_labels(context)
    split = [t for t in labeled if all(_split_name(task, field, graph, t) for field in SPLIT_FIELDS)]
    target = chosen("task.target", task.target, labeled, "node types with labels", raw, split)
    names = labeled[target]
    label = chosen("task.label", task.label, names, f"label columns of {target}", raw, _usual(names))
    splits = {field: _split_name(task, field, graph, target) for field in SPLIT_FIELDS}
    task = task.model_copy(update={field: name for field, name in splits.items() if name is not None})
    for field in SPLIT_FIELDS:
        _check_split(field, getattr(task, field), context, (target, label), labels)
    return task.model_copy(update={"target": target, "label": label, "metric": metric})


def resolved_seeds(config: RunConfig, graph: Folder, raw: RawRun) -> SeedFiles:
    """Fill in the settings of seed tables. Raises ValueError for a table that does not fit the run."""
    if config.seeds.train is None:
        return config.seeds
    try:
        found: SeedFiles = reader_of_tables("seed_tables").resolved_seeds(config, graph)
    except ValueError as error:
        raise ValueError(f"{error} ({raw.where('seeds.train')})") from None
    return found


def seed_tables_of(config: RunConfig, graph: Graph) -> SeedTables | None:
    """Return the seed tables of a resolved run; None if its seeds are splits of the graph."""
    if config.seeds.train is None:
        return None
    made: SeedTables = reader_of_tables("seed_tables").SeedTables(config, folder_of(config, graph))
    return made


def folder_of(config: RunConfig, graph: Graph) -> Folder:
    """Return the folder of a run's graph, or the graph on servers."""
    if graph.servers is not None:
        return GraphOnServers(graph, Path(config.graph), graph.servers.fingerprint)
    assert graph.folder is not None, "a run needs a graph folder or a graph on servers"
    return graph.folder


def reader_of_tables(name: str) -> Any:  # noqa: ANN401
    """Import a module of `khop.run` that reads tables. ValueError if packages for imports are missing."""
    try:
        return import_module(f"khop.run.{name}")
    except ImportError as error:
        raise ValueError(str(error)) from None


def _usual(names: Collection[str]) -> tuple[str, ...]:
    """Return the label column that khop import writes, or else the one of torch_geometric, if it exists."""
    return next(((name,) for name in (LABEL, "y") if name in names), ())


_SPLIT_NAMES = {"val_split": ("valid", "validation", "dev")}  # as other programs write them


def _split_name(task: TaskTable, field: str, graph: Folder, node_type: NodeType) -> str | None:
    """Return the name of a split of a node type: the one of the task, or for "val" another usual one."""
    having = [name for name in graph.split_names if node_type in graph.split(name)]
    asked = getattr(task, field)
    is_default = asked == type(task).model_fields[field].default
    others = [name for name in _SPLIT_NAMES.get(field, ()) if name in having and is_default]
    return asked if asked in having else others[0] if len(others) == 1 else None


def _refuse_other_labels(context: ResolveContext) -> None:
    """Raise ValueError that names the right task if the graph's labels are of another kind."""
    own, found = context.config.task.kind, labels_of_graph(context.graph.schema)
    if found is not None and found[0] != own:
        kind, label, node_type = found
        raise ValueError(
            f"task.kind is {own!r}, and the labels in the column {label!r} of {node_type!r} are of "
            f"another kind: give --task {kind} ({context.raw.where('task.kind')})"
        )


def labels_of_graph(
    schema: Schema, target: str | None = None, label: str | None = None
) -> tuple[str, str, NodeType] | None:
    """Return the task for the graph's node labels, their column and their node type; None without labels."""
    for kind in _NODE_TASKS:
        for node_type in schema.node_types if target is None else [target]:
            there = _columns_of(kind, label, schema, node_type)
            usual = _usual(there) or (tuple(there)[:1] if kind == "node-classification" else ())
            for name in usual if label is None else [name for name in there if name == label]:
                return kind, name, node_type
    return None


_NODE_TASKS = ("node-classification", "node-regression", "multi-label")


def _columns_of(kind: str, label: str | None, schema: Schema, node_type: NodeType) -> dict[str, ColumnSpec]:
    """Return the columns that can be the label of a node task."""
    if kind == "node-classification":
        return _labels(schema, node_type)
    return (_numbers if kind == "node-regression" else _label_sets)(label, schema, node_type)


def with_task(raw: RawRun, schema: Schema) -> RawRun:
    """Set the default task: the one for the graph's labels, or link prediction without labels."""
    task = raw.values.get("task", {})
    if not isinstance(task, Mapping) or task.get("kind") is not None:
        return raw
    if value_in(raw.values, "seeds.train") is not None:
        return replace(raw, values={**raw.values, "task": {**task, "kind": TASKS.default}})
    target, label = (None if task.get(name) is None else str(task[name]) for name in ("target", "label"))
    of_edges = target in [words_of(edge_type) for edge_type in schema.edge_types]
    found = None if of_edges else labels_of_graph(schema, target, label)
    if found is None and (label is not None or not schema.edge_types or not (of_edges or target is None)):
        return raw
    kind = LINK_PREDICTION if found is None else found[0]
    return replace(raw, values={**raw.values, "task": {**task, "kind": kind}})


def forward_types(schema: Schema) -> list[EdgeType]:
    """Return the edge types without those that are the reverse of an earlier one."""
    return [t for n, t in enumerate(schema.edge_types) if schema.reverse(t) not in schema.edge_types[:n]]


def task_notes(task: TaskTable, schema: Schema, raw: RawRun) -> list[str]:
    """Return a sentence for each field of a resolved task that follows from the graph, if it has several."""
    given, defaults = raw.values.get("task", {}), type(task).model_fields
    left_out = {name for name in defaults if not isinstance(given, Mapping) or given.get(name) is None}
    target, label, notes = task.target or "", task.label or "", list[str]()
    is_of_nodes, is_edge_type = task.kind in _NODE_TASKS, target not in schema.node_types
    if "kind" in left_out and task.kind != TASKS.default:
        why = "the target is an edge type" if "target" not in left_out else "no node has a label"
        why = f"{label!r} of {target!r} has such labels" if is_of_nodes else why
        notes.append(f"task.kind is {task.kind}: {why}")
    labeled = [t for t in schema.node_types if is_of_nodes and _columns_of(task.kind, None, schema, t)]
    if "target" in left_out and len(labeled) > 1:
        others = ", ".join(t for t in labeled if t != target)
        notes.append(f"task.target is {target}: it has all splits, unlike {others}")
    elif "target" in left_out and is_edge_type and len(forward_types(schema)) < len(schema.edge_types):
        notes.append(f"task.target is {target}, not its reverse")
    columns = _columns_of(task.kind, None, schema, target) if is_of_nodes else {}
    if "label" in left_out and len(columns) > 1:
        notes.append(f"task.label is {label}, of {', '.join(columns)}; --label names another one")
    for field in SPLIT_FIELDS:
        name, default = getattr(task, field), defaults[field].default
        if field in left_out and name != default:
            notes.append(f"task.{field} is {name}: there is no split {default}")
    return notes


def with_node_defaults(task: TaskTable, schema: Schema) -> TaskTable:
    """Fill in node type and label of a custom task where the graph has only one; else leave them open.

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
    """Return the columns that regression can predict; by default, those with one number per node."""
    columns = _unclassed(schema, node_type)
    if asked is not None:
        return {name: spec for name, spec in columns.items() if len(spec.shape) < 2}
    found = {name: spec for name, spec in columns.items() if not spec.shape and spec.dtype != "bool"}
    return {LABEL: found[LABEL]} if LABEL in found else found


def _label_sets(asked: str | None, schema: Schema, node_type: NodeType) -> dict[str, ColumnSpec]:
    """Return the columns with an entry per label; by default, those that are not floats."""
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
        return  # not in this process; evaluation reports nodes without labels
    problem = labels.problem(graph.split(name)[target], graph.columns()[target][column], target, column)
    if problem is not None:
        raise ValueError(f"task.{field} is {name!r}: {problem} ({where})")


def _unlabeled_node(nodes: Tensor, labels: Tensor, target: NodeType, column: str) -> str | None:
    missing = nodes[labels[nodes] < 0]
    if not missing.numel():
        return None
    return (
        f"node {int(missing[0])} of {target} in it has no {column} (its label is -1); remove such nodes from "
        "the split"
    )


def _no_number(nodes: Tensor, labels: Tensor, target: NodeType, column: str) -> str | None:
    if not labels[nodes].isnan().all():
        return None
    return f"no node of {target} in it has a known {column}; add labeled nodes to it"


def _no_label_set(nodes: Tensor, labels: Tensor, target: NodeType, column: str) -> str | None:
    if (entries_of(labels[nodes]) != UNKNOWN).any():
        return None
    return f"no node of {target} in it has a known {column}; add labeled nodes to it"


_SPLITS = {"column": "by a column", "time": "by time", "random": "at random"}


def resolved_links(_: object, context: ResolveContext) -> TaskTable:
    """Fill in the edge types and the metric. Raises ValueError if the graph lacks a requested item."""
    task, graph, raw = context.config.task, context.graph, context.raw
    if task.label is not None:
        where = raw.where("task.label")
        raise ValueError(f"task.label is {task.label!r}: links have no label column, leave it out ({where})")
    there = {words_of(edge_type): edge_type for edge_type in graph.schema.edge_types}
    asked = [None] if task.target is None else [name.strip() for name in task.target.split(",")]
    forward = [words_of(edge_type) for edge_type in forward_types(graph.schema)]
    targets = [chosen("task.target", name, there, "edge types", raw, forward) for name in asked]
    target = ", ".join(targets)
    metric = task.metric or "mrr"
    try:
        check_task_metric(metric)
    except ValueError as error:
        raise ValueError(f"task.{error} ({raw.where('task.metric')})") from error
    if is_full_metric(metric) and context.config.links.relation is not None:
        raise ValueError(
            f"task.metric is {metric!r} and links.relation is {context.config.links.relation!r}: {metric} "
            "ranks the destinations of each source, regardless of relations; set another metric "
            f"({raw.where('task.metric', 'links.relation')})"
        )
    _check_several(context, target, [there[name] for name in targets])
    _check_hard(context, [there[name] for name in targets])
    for path in ("links.val_negatives", "links.test_negatives"):
        if len(targets) > 1 and value_at(context.config, path) is not None:
            raise ValueError(
                f"{path} is {value_at(context.config, path)!r} and task.target is {target!r}: a file has "
                f"negatives of one edge type; name one target ({raw.where(path, 'task.target')})"
            )
    for name in targets:
        check_links(context, name, there[name])
    return task.model_copy(update={"target": target, "metric": metric})


def check_links(context: ResolveContext, target: str, edge_type: EdgeType) -> None:
    """Raise ValueError unless the links of an edge type can be split, and have times if these are needed."""
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
                f"task.target is {target!r}: {words_of(back)} is the reverse of {words_of(edge_type)}; name "
                f"one of them ({raw.where('task.target')})"
            )
    columns = {t: schema.columns.get(t, {}) for t in edge_types}
    try:
        links_split(context.config.links.split, columns, cut_offs_of(context.graph))
    except ValueError as error:
        raise ValueError(f"{error} ({raw.where('links.split')})") from None


def _check_hard(context: ResolveContext, targets: Sequence[EdgeType]) -> None:
    """Raise ValueError unless the run supports hard negatives, which need a search of all destinations."""
    config, raw = context.config, context.raw
    count, path = config.links.hard_negatives, "links.hard_negatives"
    unfit = {
        "links.decoder": config.links.decoder == "mlp"
        and "hard negatives need a decoder of inner products or distances, such as dot",
        "links.relation": config.links.relation is not None
        and "hard negatives are searched per source, not per source and relation",
        "links.corrupt": config.links.corrupt != "destination" and "hard negatives replace destinations",
        "servers.addresses": bool(config.servers.addresses) and "servers do not store hard negatives",
        "device": config.device != "cpu" and "hard negatives are in host memory",
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
            f"{path} is {count}: there are only {nodes} nodes of {destination!r}; give at most this number "
            f"({raw.where(path)})"
        )


def links_split(asked: str, columns: Mapping[EdgeType, Collection[str]], cut_offs: TimeCutOffs | None) -> str:
    """Return the split of links of edge types with these columns, which must be the same for all types."""
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
    """Raise ValueError unless the column of relations has an integer per link."""
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
    if count == 0:
        raise ValueError(
            f"task.target is {target!r}: the graph has no edges of this type; import some, or give another "
            f"target ({raw.where('task.target')})"
        )
    for name in ("val", "test"):
        share, where = getattr(links, name), raw.where(f"links.{name}")
        if int(count * share) == 0:
            raise ValueError(
                f"links.{name} is {share}: 0 of the {count} links of {target} would be held out; "
                f"increase it ({where})"
            )
    if links.val + links.test >= 1:
        raise ValueError(
            f"links.val is {links.val} and links.test {links.test}: no training links are left; "
            f"lower them ({raw.where('links.val', 'links.test')})"
        )


_OF_SPLITS = {"split", "val", "test"}  # settings in the table links that runs over edge labels use


def resolved_edge_classes(_: object, context: ResolveContext) -> TaskTable:
    """Fill in edge type, label and metric. Raises ValueError if the graph lacks a requested item."""
    return _resolved_edge_task(context, METRICS, _is_class)


def resolved_edge_numbers(_: object, context: ResolveContext) -> TaskTable:
    """Fill in edge type, label and metric. Raises ValueError if the graph lacks a requested item."""
    return _resolved_edge_task(context, REGRESSION_METRICS, _is_number)


def _resolved_edge_task(
    context: ResolveContext, metrics: Iterable[str], fits: Callable[[ColumnSpec], bool]
) -> TaskTable:
    task, schema, raw = context.config.task, context.graph.schema, context.raw
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
            f"task.kind is {task.kind!r}: no edge type has a suitable column; give the edges a column of "
            f"labels ({raw.where('task.kind')})"
        )
    forward = [words_of(edge_type) for edge_type in forward_types(schema)]
    target = chosen("task.target", task.target, there, "edge types with labels", raw, forward)
    names = labeled[there[target]]
    label = chosen("task.label", task.label, names, f"label columns of {target}", raw, _usual(names))
    check_links(context, target, there[target])
    return task.model_copy(update={"target": target, "label": label, "metric": metric})


def _check_unused(context: ResolveContext) -> None:
    """Raise ValueError for settings of link prediction that tasks over edge labels do not use."""
    config, raw = context.config, context.raw
    for entry in fields_of(type(config)):
        section, name, *_ = [*entry.path.split("."), ""]
        value = value_at(config, entry.path)
        if section == "links" and name not in _OF_SPLITS and value != entry.default:
            raise ValueError(
                f"{entry.path} is {value!r}: the task {config.task.kind} scores no pairs and draws no "
                f"negatives; leave it out ({raw.where(entry.path)})"
            )


def _is_class(spec: ColumnSpec) -> bool:
    return not spec.shape and "int" in spec.dtype and spec.scales is None


def _is_number(spec: ColumnSpec) -> bool:
    return len(spec.shape) < 2 and spec.dtype != "bool" and spec.scales is None
