"""Baselines of a run that do not use its model: label propagation, and training on node features only.

Also warnings of biased draws and of columns that the model does not read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from khop.api.edges import edges_here, joined_rows
from khop.api.open_graph import Graph
from khop.components import MODELS
from khop.inference.evaluation import labels_of
from khop.models.link_predictor import EdgePredictor, LinkPredictor
from khop.run.build import Run
from khop.run.check import checked
from khop.run.contexts import TaskContext, rule_of
from khop.run.memory import without_later_placement
from khop.run.parts import columns_of, words_of
from khop.run.read import RawRun
from khop.run.run_type import built, component_of, fields_of, value_at
from khop.run.tasks.node_task import NodeTask, context_of_split, training_labels
from khop.run.values import RunConfig
from khop.sampling.links.link_split import SPLIT, TIME
from khop.sampling.rules.weighted import weighted_in
from khop.sampling.sampler import fanouts_by_type
from khop.sampling.seeds import ids_here
from khop.schema import EdgeType
from khop.training.tasks import LABEL_PROPAGATION, NodeClassification, constant_of, propagated


def has_label_propagation(run: Run) -> bool:
    """Return True for a run over one class per node, with edges among the nodes."""
    task = run.run_task
    if not (isinstance(task, NodeTask) and isinstance(task.task, NodeClassification)) or task.tables:
        return False  # rows of a table: a node has several labels
    return any(t[0] == t[2] == task.task.node_type for t in run.graph.schema.edge_types)


def label_propagation(run: Run, splits: Sequence[str], extra_metrics: Sequence[str]) -> Mapping[str, float]:
    """Return the scores of label propagation, such as "val/label-propagation/accuracy".

    Labels of training nodes spread over the edges from the classified node type to itself, in the graph that
    the split may use. Nodes without a path from a training node get the constant prediction. {} unless
    `has_label_propagation`, and if the edges are on servers. Collective if edges or columns are partitioned
    over ranks; each rank then needs 8 bytes per class for every node of the type.
    """
    task, graph = run.run_task, run.graph
    if not (has_label_propagation(run) and isinstance(task, NodeTask)) or graph.servers is not None:
        return {}
    assert isinstance(task.task, NodeClassification)
    objective, node_type, found = task.task, task.task.node_type, dict[str, float]()
    classes = graph.schema.column(node_type, objective.label).num_classes
    types = [t for t in graph.schema.edge_types if t[0] == t[2] == node_type]
    training, labels = ids_here(task.nodes("train")), training_labels(task.context, objective)
    constant = constant_of(objective, labels, classes or 0)
    if classes is None or constant is None:
        return {}
    for split in splits:
        if split == "train":
            continue  # their labels are known
        outputs = _outputs(context_of_split(task.context, split).graph, types, training, labels, classes)
        nodes = ids_here(task.nodes(split))
        rows = torch.where(outputs[nodes].isnan(), constant.output.double(), outputs[nodes])
        of_split = labels_of(objective, graph.features, nodes)
        for metric in dict.fromkeys((objective.metric, *extra_metrics)):
            name = f"{split}/{LABEL_PROPAGATION}/{metric}"
            found[name] = objective.score(rows, of_split, nodes, metric)
    return found


def _outputs(graph: Graph, types: Sequence[EdgeType], nodes: Tensor, labels: Tensor, classes: int) -> Tensor:
    """Return float64 (nodes, classes): shares of the labels that reach a node; NaN if none does."""
    count = graph.num_nodes(types[0][0])
    given, known = torch.zeros(count, classes), torch.zeros(count, dtype=torch.bool)
    known[nodes[labels >= 0]] = True
    given[nodes[labels >= 0], labels[labels >= 0].long()] = 1.0
    edges, joined = [edges_here(graph, t) for t in types], joined_rows(graph, types[0][0])
    rows, reached = propagated(edges, given, known, joined=joined)
    return torch.where(reached.unsqueeze(1), rows, torch.nan)


_SHAPE = ("hidden", "layers", "column", "dropout", "norm", "residual")  # settings of both models


def own_features(run: Run, raw: RawRun) -> Run:
    """Return a run with the task, splits, seed and training of `run`, and an MLP as the model.

    The MLP reads only the input column of each node, without neighbors or embeddings. `raw` has the
    permission to import components that the run names. Raises ValueError if no node type of the task has the
    column.
    """
    column, types = run.config.model.column, run.run_task.node_types
    if not any(column in run.graph.schema.columns.get(node_type, {}) for node_type in types):
        raise ValueError(
            f"--baselines: {', '.join(types)} has no column {column!r}, so there are no node features to "
            "train on; leave --baselines out"
        )
    config = checked(RawRun(_values(run.config), raw.source, permission=raw.permission))
    graph = without_later_placement(run.graph)  # without neighbors, there is nothing to sample on a GPU
    return Run(config, graph, built(config, "task", TaskContext(config, graph)))


def _values(config: RunConfig) -> dict[str, object]:
    """Return the settings of the baseline. GraphSAGE without neighbors is an MLP."""
    found = config.model_dump(mode="json", exclude_none=True)
    no_neighbors = [0] * len(config.sampler.fanouts)
    model = {name: value for name, value in found["model"].items() if name in _SHAPE}
    time = {name: found["sampler"][name] for name in ("time",) if name in found["sampler"]}
    evaluation = found["evaluation"] | {"fanouts": no_neighbors if time else []}
    return {
        **{name: value for name, value in found.items() if name != "out"},
        "model": {"kind": MODELS.default, "embedding": 0, **model},
        "sampler": {"fanouts": no_neighbors, **time},
        "evaluation": evaluation,
    }


def biased_draws(config: RunConfig, graph: Graph) -> str | None:
    """Return a warning with the remedy if training draws by weight without replacement, else None.

    A mean over such draws is biased, and exact evaluation is the unweighted mean. There is no warning for
    sampled evaluation, for weights that are a mask, or if all neighbors are drawn.
    """
    rule = weighted_in(rule_of(config, graph))
    if rule is None or rule.replacement or config.evaluation.fanouts:
        return None
    attends = getattr(component_of(config, "model").declared, "attends", False)
    if attends or not config.sampler.layers_are_hops:
        return None
    schema = graph.schema
    specs = {t: schema.columns.get(t, {}).get(rule.column) for t in schema.edge_types}
    weighed = [t for t, spec in specs.items() if spec is not None and spec.dtype != "bool"]
    if not any(hop[t] > 0 for hop in fanouts_by_type(schema, config.sampler.fanouts) for t in weighed):
        return None
    setting = "sampler.replacement" if config.sampler.rule is None else "sampler.rule.replacement"
    return (
        f"draws by {rule.column} without replacement are biased: training averages lie between the mean by "
        f"weight and the plain mean, and exact evaluation takes the plain mean; with {setting} = true both "
        "are the mean by weight"
    )


def unread_edge_columns(config: RunConfig, graph: Graph, model: nn.Module) -> str | None:
    """Return a warning with the remedies if edges have numbers that neither model nor sampler reads."""
    encoder = model.encoder if isinstance(model, LinkPredictor | EdgePredictor) else model
    named = columns_of(config, graph, encoder)
    by_type = named if isinstance(named, Mapping) else {}
    settings = {"sampler.time", "sampler.weight", "sampler.rule.column", "links.relation", "task.label"}
    settings &= {field.path for field in fields_of(type(config))}  # components have tables with their own
    used = {SPLIT, TIME, *(value_at(config, path) for path in settings)}
    schema, found = graph.schema, dict[EdgeType, list[str]]()
    for edge_type in schema.edge_types:
        names = [name for name in schema.columns.get(edge_type, {}) if name not in used]
        unread = [name for name in names if name not in by_type.get(edge_type, ())]
        if unread and schema.reverse(edge_type) not in found:
            found[edge_type] = unread
    if not found:
        return None
    words = "; ".join(f"{', '.join(names)} of {words_of(t)}" for t, names in found.items())
    first = next(iter(found.values()))[0]
    return (
        f"columns of edges that {config.model.kind} does not read: {words}. --model gat --edge-column "
        f"{first} reads numbers, and --model rgcn --relation COLUMN whole numbers as relations; all models "
        'read rows that are imported as nodes (docs/import-later.md, "Events as nodes")'
    )
