"""Predictions of a run for later data: new nodes, joined to its graph with their edges."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from khop.api.open_graph import Graph
from khop.config.build import Run
from khop.config.contexts import TaskContext, rule_of
from khop.config.values import RunConfig
from khop.features.table import FeatureTable
from khop.graph.csc_graph import open_csc_graph
from khop.graph.folder import Folder, GraphFolder, open_folder
from khop.graph.ids_by_node import IdsHere
from khop.graph.names import LABEL, Names
from khop.graph.row_order import INPUT
from khop.inference.chunks import Progress, unwatched
from khop.inference.evaluation import SplitOutputs
from khop.inference.later_graph import JoinedGraph
from khop.inference.later_nodes import joined_nodes, later_ids
from khop.inference.parquet_file import id_columns
from khop.inference.predictions import Columns, labels_of, predicted
from khop.kernels.id_table import Keys
from khop.models.renumbered import renumbered
from khop.partition.parts_folder import PartsFolder
from khop.sampling.fanouts import followed_types
from khop.schema import EdgeType, NodeType
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
    neighborhood of the new nodes is computed, in memory. ValueError for a run without outputs per node, for
    later data with other encoders, and if there are no new nodes.
    """
    task, graph = run.task, run.graph
    if not isinstance(task, NodeObjective):
        raise ValueError(
            f"the run's task is {run.config.task.kind}: predictions for later data need outputs of nodes; "
            "give a run of node classification"
        )
    if graph.folder is None or graph.rank_edges is not None:
        raise ValueError(
            "the edges of the run's graph are on servers or other ranks: predict with its folder, in one "
            "process"
        )
    folder, node_type = open_folder(later), task.node_type
    places = joined_nodes(graph.folder, folder)
    joined = JoinedGraph(
        graph.in_one_piece("predict"),
        graph.features,
        open_csc_graph(folder),
        places,
        graph.schema.columns,
        _sort_by(graph.folder),
    )
    new, count = joined.new(node_type), graph.num_nodes(node_type)
    if not new.numel():
        raise ValueError(f"{later}: has no new nodes of {node_type!r}, which the run predicts")
    seeds = torch.arange(count, count + new.numel())
    hops, followed = _reach(run)
    near = joined.neighborhood({node_type: seeds}, hops, followed, run.config.compute_threads)
    features = FeatureTable.of(near.graph.schema, near.columns, run.config.threads)
    context = TaskContext(run.config, Graph(near.graph, features))
    counts = {t: graph.num_nodes(t) for t in graph.schema.node_types}
    local = near.local(node_type, seeds)
    with renumbered(run.model, near.nodes, counts):
        outputs = context.outputs(run.model, node_type, local, progress)
    labels = near.columns[node_type][task.label][local]
    record = Names.of(graph.folder).labels.get(node_type, {}) if task.label == LABEL else {}
    has_labels = task.label in folder.schema.columns.get(node_type, {})
    return LaterPredictions(
        node_type,
        later_ids(folder, node_type),
        SplitOutputs(new, labels, outputs),
        record,
        "given" if has_labels else "unknown",
    )


def _reach(run: Run) -> tuple[int, tuple[EdgeType, ...]]:
    """Return the hops that outputs of the run depend on, and the edge types that they follow.

    A rule that normalizes by degrees counts all edges of the outermost nodes, too.
    """
    config: RunConfig = run.config
    hops, schema = [config.sampler.fanouts, config.evaluation.fanouts], run.graph.schema
    layers = getattr(run.model, "num_layers", 0)
    followed = {t for fanouts in hops if fanouts for t in followed_types(schema, fanouts)}
    depth = max([*map(len, hops), layers if isinstance(layers, int) else 0])
    if rule_of(config, run.graph).degrees is not None:
        return depth + 1, schema.edge_types
    return depth, tuple(t for t in schema.edge_types if t in followed)


def _sort_by(folder: Folder) -> str | None:
    """Return the column that the rows of a graph are sorted by; None: they keep the order of the input."""
    match folder:
        case GraphFolder(manifest=manifest):
            edges = manifest.edges
        case PartsFolder(parts=parts):
            edges = parts[0].manifest.edges
        case _:
            edges = ()
    return next(iter(sorted({edge.row_order for edge in edges} - {INPUT})), None)
