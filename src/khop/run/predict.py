"""Predictions of a run for new nodes joined to its graph, and recommendations."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor

from khop.api.open_graph import Graph, names_of
from khop.api.recommend import Candidates, Recommender
from khop.graph.features.table import FeatureTable
from khop.graph.folder import Folder, open_folder
from khop.graph.layout import owner_of
from khop.graph.node_ids import LABEL, UNDATED, IdsHere, Names, joined_nodes, later_ids
from khop.graph.store import csc_graph_from_edges, open_csc_graph
from khop.inference.chunks import Progress, unwatched
from khop.inference.evaluation import SplitOutputs
from khop.inference.later_graph import JoinedGraph, Neighborhood
from khop.inference.node_outputs import ExactDraws
from khop.inference.predictions import Columns, dates_of, id_columns, labels_of, of_kind, predicted
from khop.kernels.id_table import Keys
from khop.models.encoder import renumbered
from khop.models.link_predictor import EdgePredictor, LinkPredictor
from khop.run.build import Run
from khop.run.contexts import TaskContext, exact_draws_of, rule_of
from khop.run.tasks.link_run_task import LinkTask
from khop.run.tasks.node_task import NodeTask, scored_rows
from khop.run.values import RunConfig
from khop.sampling.sampler import followed_types
from khop.schema import EdgeType, NodeType
from khop.training.tasks import NodeObjective

Computed = TypeVar("Computed")


@dataclass(frozen=True, eq=False)
class JoinedRun:
    """A run whose graph is joined with later data."""

    run: Run
    base: Folder  # of the run's graph
    later: Folder | None
    joined: JoinedGraph

    @classmethod
    def of(cls, run: Run, later: Path | None) -> JoinedRun:
        """Join the folder of later data, if any, to the graph of a run.

        Raises ValueError for later data with other encoders, and if the graph's edges are not in this
        process.
        """
        graph = run.run_task.whole
        if run.graph.folder is None or graph.rank_edges is not None:
            raise ValueError(
                "the edges of the run's graph are on servers or other ranks: predict with its folder, in one "
                "process"
            )
        base, folder = run.graph.folder, None if later is None else open_folder(later)
        nothing = csc_graph_from_edges(dict.fromkeys(graph.schema.node_types, 0), {})
        joined = JoinedGraph(
            graph.in_one_piece("predict"),
            graph.features,
            nothing if folder is None else open_csc_graph(folder),
            {} if folder is None else joined_nodes(base, folder),
            graph.schema.columns,
            _sort_by(base),
        )
        return cls(run, base, folder, joined)

    def near(
        self, seeds: Mapping[NodeType, Tensor], compute: Callable[[Neighborhood, Graph], Computed]
    ) -> Computed:
        """Compute a value from the neighborhood of some nodes, with one hop per layer of the model.

        `compute` gets the neighborhood and its graph with columns. During the call, the model looks up
        embeddings by local ids of the neighborhood.
        """
        run, graph = self.run, self.run.run_task.whole
        hops, followed = _reach(run, graph)
        near = self.joined.neighborhood(seeds, hops, followed, run.config.compute_threads)
        features = FeatureTable.of(near.graph.schema, near.columns, run.config.threads)
        counts = {t: graph.num_nodes(t) for t in graph.schema.node_types}
        with renumbered(run.model, near.nodes, counts):
            return compute(near, Graph(near.graph, features))


def _reach(run: Run, graph: Graph) -> tuple[int, tuple[EdgeType, ...]]:
    """Return the number of hops that outputs of the run depend on, and their edge types.

    A rule that normalizes by degrees also needs all edges of the outermost nodes.
    """
    config: RunConfig = run.config
    hops, schema = [config.sampler.fanouts, config.evaluation.fanouts], graph.schema
    model = run.model.encoder if isinstance(run.model, LinkPredictor | EdgePredictor) else run.model
    layers = getattr(model, "num_layers", 0)
    followed = {t for fanouts in hops if fanouts for t in followed_types(run.graph.schema, fanouts)}
    depth = max([*map(len, hops), layers if isinstance(layers, int) else 0])
    if rule_of(config, graph).degrees is not None:
        return depth + 1, schema.edge_types
    return depth, tuple(t for t in schema.edge_types if t in followed)


def _sort_by(folder: Folder) -> str | None:
    """Return the column by which edges are sorted, or None for the order of the input."""
    return next(iter(sorted({*folder.row_order.values()})), None)


_ROWS = 1 << 16  # of a row group


@dataclass(frozen=True, eq=False)
class LaterPredictions:
    """Predictions for the new nodes of one type, in the order of the later data."""

    node_type: NodeType
    ids: Keys  # by later node
    outputs: SplitOutputs  # of the new nodes; labels are unknown unless the later tables have them
    record: Mapping[str, Any]  # of the label, as import.json has it
    labels: str  # "given" by the later tables, or "unknown"
    notes: tuple[str, ...] = ()  # about nodes without a date

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
    """Predict the new nodes of a folder of later data, exactly or sampled as in the run's evaluation.

    The prediction of a new node equals that in a graph which contains the node and its edges from the start,
    with the same encoders. Messages pass over all edges, including those after the cut-offs of a split by
    time. With `sampler.time`, a new node is predicted as of the date of its label, as in training, or as of
    the latest time in the data if it has none. Only the neighborhoods of the new nodes are computed, in
    memory, for `evaluation.batch_size` nodes at a time. Raises ValueError for a run without outputs per node,
    for later data with other encoders, and if there are no new nodes.
    """
    task = run.task
    if not isinstance(task, NodeObjective):
        path = Path(run.config.graph)
        graph = shlex.quote(str(owner_of(path) or path))
        raise ValueError(
            f"the run's task is {run.config.task.kind}, which has no outputs per node; for new users or "
            f"items, use khop append {graph} SPEC.toml and khop recommend, or score pairs with --pairs FILE "
            "(in Python pairs=)"
        )
    if isinstance(run.run_task, NodeTask) and run.run_task.tables is not None:
        raise ValueError(
            "--graph: the run predicts rows of tables; add the new nodes with khop append, and give --rows "
            "FILE (in Python rows=)"
        )
    joined, node_type = JoinedRun.of(run, later), task.node_type
    assert joined.later is not None
    new, count = joined.joined.new(node_type), run.graph.num_nodes(node_type)
    if not new.numel():
        raise ValueError(f"{later}: has no new nodes of {node_type!r}, which the run predicts")
    times, notes = _times_of(joined, node_type, new)
    labels, outputs, done = [], [], 0
    for seeds in torch.arange(count, count + new.numel()).split(run.config.evaluation.batch_size):
        until = None if times is None else times[seeds - count]
        some = _Chunk(run, task, seeds, until, _part_of(progress, done, seeds.numel(), new.numel()))
        of_labels, of_outputs = joined.near({node_type: seeds}, some.computed)
        labels.append(of_labels)
        outputs.append(of_outputs)
        done += seeds.numel()
    record = Names.of(joined.base).labels.get(node_type, {}) if task.label == LABEL else {}
    kind = run.run_task.kind if isinstance(run.run_task, NodeTask) else "by dtype"
    has_labels = task.label in joined.later.schema.columns.get(node_type, {})
    return LaterPredictions(
        node_type,
        later_ids(joined.later, node_type),
        SplitOutputs(new, of_kind(torch.cat(labels), kind), torch.cat(outputs)),
        record,
        "given" if has_labels else "unknown",
        notes,
    )


def _times_of(joined: JoinedRun, node_type: NodeType, new: Tensor) -> tuple[Tensor | None, tuple[str, ...]]:
    """Return the time of each new node, and a note of those without one: the latest time in the data."""
    config = joined.run.config
    column = TaskContext(config, joined.run.graph).time_of_seeds(node_type)
    if column is None or config.sampler.time is None:
        return None, ()
    given = joined.joined.later.columns.get(node_type, {}).get(column)
    times = torch.full_like(new, UNDATED) if given is None else given[new].long()
    unknown = times == UNDATED
    if not unknown.any():
        return times, ()
    times[unknown] = joined.joined.latest(config.sampler.time)
    return times, (
        f"{int(unknown.sum()):,} of {new.numel():,} new nodes have no {column}: they are predicted as of the "
        "latest time in the data",
    )


@dataclass(frozen=True, eq=False)
class RowPredictions:
    """Predictions for the rows of a table, in its order."""

    node_type: NodeType
    names: Names
    outputs: SplitOutputs
    record: Mapping[str, Any]  # of the label, as import.json has it
    labels: Literal["given", "unknown"]

    def pieces(self) -> Iterator[Columns]:
        """Yield `id`, `node`, `time` if rows have dates, `label` if the table has it, and predictions."""
        for at in torch.arange(self.outputs.nodes.numel()).split(_ROWS):
            columns = id_columns(self.names.ids.get(self.node_type), self.outputs.nodes[at], "id", "node")
            if self.outputs.times is not None:
                columns["time"] = dates_of(self.outputs.times[at], self.record)
            if self.labels == "given":
                columns |= labels_of(self.outputs.labels[at], self.record)
            yield columns | predicted(self.outputs, at, self.record)


def predict_rows(run: Run, rows: Any, progress: Progress = unwatched) -> RowPredictions:  # noqa: ANN401
    """Predict the rows of a table of ids, with dates if the run has them, as in the run's evaluation.

    `rows` is a file, or a table of pandas, polars or Arrow, with the columns of the run's seed tables; labels
    are not needed. Messages pass over all edges of the graph, or up to the date of each row if rows have
    dates. Raises ValueError for a run without seed tables.
    """
    task = run.run_task
    if not isinstance(task, NodeTask) or task.tables is None:
        raise ValueError(
            "--rows: the run was trained on splits of its graph, not on tables of rows ([seeds]); give new "
            "nodes with --graph (in Python later=)"
        )
    node_type, tables = task.task.node_type, task.tables
    table = tables.read(tables.open(rows, "rows", is_labeled=False), is_labeled=False)
    scored = scored_rows(table, node_type)
    if scored.nodes.numel() == 0:
        raise ValueError(f"{rows}: has no rows")
    outputs = task.context.outputs(task.model, node_type, scored.nodes, progress, scored.times)
    unknown = {"by dtype": torch.full((len(outputs),), -1), "numbers": torch.full((len(outputs),), torch.nan)}
    labels = unknown.get(task.kind, torch.full(outputs.shape, -1)) if scored.labels is None else scored.labels
    found = SplitOutputs(scored.nodes, of_kind(labels, task.kind), outputs, scored.times)
    given: Literal["given", "unknown"] = "unknown" if scored.labels is None else "given"
    return RowPredictions(node_type, names_of(run.graph), found, tables.record, given)


@dataclass(frozen=True, eq=False)
class _Chunk:
    """A chunk of new nodes to predict."""

    run: Run
    task: NodeObjective
    seeds: Tensor  # int64 (nodes) of the joined graph
    times: Tensor | None  # int64 (nodes); None: the run has no times
    progress: Progress

    def computed(self, near: Neighborhood, graph: Graph) -> tuple[Tensor, Tensor]:
        """Return labels and outputs of the chunk."""
        node_type = self.task.node_type
        local = near.local(node_type, self.seeds)
        context = TaskContext(self.run.config, graph)
        outputs = context.outputs(self.run.model, node_type, local, self.progress, self.times)
        return near.columns[node_type][self.task.label][local], outputs


def _part_of(progress: Progress, done: int, count: int, total: int) -> Progress:
    """Return the progress callback of a chunk of `count` nodes, after `done` of `total` nodes."""
    return lambda part, whole: progress(done + count * part // max(1, whole), total)


def recommender_of(run: Run, split: str, k: int, candidates: Candidates) -> Recommender:
    """Check that a run can recommend, and return its recommender over the edges of a split, or "all".

    Raises ValueError for runs of other tasks, for time windows, and for edges that are not in this process.
    """
    task = run.run_task
    if not isinstance(task, LinkTask):
        raise ValueError(
            f"recommend: the task of the run is {run.config.task.kind}; only link-prediction runs recommend; "
            "give a run with that task"
        )
    draws_for(run)  # an error comes before any work
    if run.graph.servers is not None or run.graph.rank_edges is not None:
        raise ValueError("recommend needs the whole graph in one process; pass the graph folder")
    graph = {"train": task.split.train, "val": task.split.val, "test": task.split.test}.get(split, task.whole)
    return Recommender.checked(task.model, graph, task.edge_type, k, candidates)


def draws_for(run: Run) -> ExactDraws:
    """Return the rule and the fanouts of training, with which outputs are computed."""
    return exact_draws_of(run.config, run.run_task.whole)
