"""The baseline of label propagation of a run over nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from khop.api.edges_here import edges_here, joined_rows
from khop.api.open_graph import Graph
from khop.config.build import Run
from khop.config.node_task import NodeTask, context_of_split, training_labels
from khop.inference.evaluation import labels_of
from khop.sampling.listed import ids_here
from khop.schema import EdgeType
from khop.training.baselines import LABEL_PROPAGATION, constant_of
from khop.training.label_propagation import propagated
from khop.training.tasks import NodeClassification


def has_label_propagation(run: Run) -> bool:
    """Return True for a run over classes of nodes with edges among themselves."""
    task = run.run_task
    if not (isinstance(task, NodeTask) and isinstance(task.task, NodeClassification)):
        return False
    return any(t[0] == t[2] == task.task.node_type for t in run.graph.schema.edge_types)


def label_propagation(run: Run, splits: Sequence[str], beside: Sequence[str]) -> Mapping[str, float]:
    """Return the scores of label propagation, such as "val/label-propagation/accuracy".

    Labels of training nodes spread over the edges from the classified node type to itself, of the graph that
    the split may use. Nodes that none reaches get the constant prediction. {} unless `has_label_propagation`,
    and where servers have the edges. Collective where ranks hold edges or columns in parts; each rank then
    has a row of 8 bytes per class for every node of the type.
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
            continue  # its labels are given
        outputs = _outputs(context_of_split(task.context, split).graph, types, training, labels, classes)
        nodes = ids_here(task.nodes(split))
        rows = torch.where(outputs[nodes].isnan(), constant.output.double(), outputs[nodes])
        of_split = labels_of(objective, graph.features, nodes)
        for metric in dict.fromkeys((objective.metric, *beside)):
            name = f"{split}/{LABEL_PROPAGATION}/{metric}"
            found[name] = objective.score(rows, of_split, nodes, metric)
    return found


def _outputs(graph: Graph, types: Sequence[EdgeType], nodes: Tensor, labels: Tensor, classes: int) -> Tensor:
    """Return float64 (nodes, classes): shares of the labels that arrive; NaN where none does."""
    count = graph.num_nodes(types[0][0])
    given, known = torch.zeros(count, classes), torch.zeros(count, dtype=torch.bool)
    known[nodes[labels >= 0]] = True
    given[nodes[labels >= 0], labels[labels >= 0].long()] = 1.0
    edges, joined = [edges_here(graph, t) for t in types], joined_rows(graph, types[0][0])
    rows, reached = propagated(edges, given, known, joined=joined)
    return torch.where(reached.unsqueeze(1), rows, torch.nan)
