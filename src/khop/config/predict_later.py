"""Predictions of a run for later data: new nodes, joined to its graph with their edges."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from khop.api.open_graph import Graph
from khop.config.build import Run
from khop.config.contexts import TaskContext
from khop.config.joined_run import JoinedRun
from khop.graph.ids_by_node import IdsHere
from khop.graph.later_nodes import later_ids
from khop.graph.names import LABEL, Names
from khop.graph.snapshots import owner_of
from khop.inference.chunks import Progress, unwatched
from khop.inference.evaluation import SplitOutputs
from khop.inference.later_graph import Neighborhood
from khop.inference.parquet_file import id_columns
from khop.inference.predictions import Columns, labels_of, predicted
from khop.kernels.id_table import Keys
from khop.schema import NodeType
from khop.training.tasks import NodeObjective

_ROWS = 1 << 16  # of a row group


@dataclass(frozen=True, eq=False)
class LaterPredictions:
    """Predictions for the new nodes of one type, in the order of the later data."""

    node_type: NodeType
    ids: Keys  # by later node
    outputs: SplitOutputs  # of the new nodes; labels are unknown unless the later tables have them
    record: Mapping[str, Any]  # of the label, as import.json has it
    labels: str  # "given" by the later tables, or "unknown"

    def __len__(self) -> int:
        return self.outputs.nodes.numel()

    def pieces(self) -> Iterator[Columns]:
        """Yield the columns of consecutive rows: `id`, `label` if it is given, and predictions.

        Predictions have the columns of `khop evaluate --predictions`.
        """
        for at in torch.arange(len(self)).split(_ROWS):
            columns = {"id": id_columns(IdsHere(self.ids), self.outputs.nodes[at], "id", "node")["id"]}
            if self.labels == "given":
                columns |= labels_of(self.outputs.labels[at], self.record)
            yield columns | predicted(self.outputs, at, self.record)


def predict_later(run: Run, later: Path, progress: Progress = unwatched) -> LaterPredictions:
    """Predict the new nodes of a folder of later data, as `evaluation` of the run says: exact, or sampled.

    A new node gets the prediction that it would get in a graph which had it and its edges from the beginning,
    with the same encoders. Messages pass over all edges, also after the cut-offs of a split by time. Only the
    neighborhoods of the new nodes are computed, in memory, those of `evaluation.batch_size` nodes at a time.
    ValueError for a run without outputs per node, for later data with other encoders, and if there are no new
    nodes.
    """
    task = run.task
    if not isinstance(task, NodeObjective):
        path = Path(run.config.graph)
        graph = shlex.quote(str(owner_of(path) or path))
        raise ValueError(
            f"the run's task is {run.config.task.kind}: it has no outputs of nodes; for new users and items "
            f"of links, khop append {graph} SPEC.toml and khop recommend, or score pairs by --pairs FILE, in "
            "Python pairs="
        )
    joined, node_type = JoinedRun.of(run, later), task.node_type
    assert joined.later is not None
    new, count = joined.joined.new(node_type), run.graph.num_nodes(node_type)
    if not new.numel():
        raise ValueError(f"{later}: has no new nodes of {node_type!r}, which the run predicts")
    labels, outputs, done = [], [], 0
    for seeds in torch.arange(count, count + new.numel()).split(run.config.evaluation.batch_size):
        some = _Chunk(run, task, seeds, _part_of(progress, done, seeds.numel(), new.numel()))
        of_labels, of_outputs = joined.near({node_type: seeds}, some.computed)
        labels.append(of_labels)
        outputs.append(of_outputs)
        done += seeds.numel()
    record = Names.of(joined.base).labels.get(node_type, {}) if task.label == LABEL else {}
    has_labels = task.label in joined.later.schema.columns.get(node_type, {})
    return LaterPredictions(
        node_type,
        later_ids(joined.later, node_type),
        SplitOutputs(new, torch.cat(labels), torch.cat(outputs)),
        record,
        "given" if has_labels else "unknown",
    )


@dataclass(frozen=True, eq=False)
class _Chunk:
    """Some new nodes."""

    run: Run
    task: NodeObjective
    seeds: Tensor  # int64 (nodes) of the joined graph
    progress: Progress

    def computed(self, near: Neighborhood, graph: Graph) -> tuple[Tensor, Tensor]:
        """Return labels and outputs of the nodes."""
        node_type = self.task.node_type
        local = near.local(node_type, self.seeds)
        context = TaskContext(self.run.config, graph)
        outputs = context.outputs(self.run.model, node_type, local, self.progress)
        return near.columns[node_type][self.task.label][local], outputs


def _part_of(progress: Progress, done: int, count: int, total: int) -> Progress:
    """Return the progress of `count` of `total` nodes, after `done` others."""
    return lambda part, whole: progress(done + count * part // max(1, whole), total)
