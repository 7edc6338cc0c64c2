"""Tasks over labeled edges: classification and regression of the edges of one type."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated

import torch
from torch import Tensor, nn

from khop.api.loader import Loader
from khop.api.open_graph import Graph
from khop.api.split_links import (
    LinkSplit,
    split_links,
    split_links_by_column,
    split_links_by_time,
    time_cut_offs,
)
from khop.components import Count, Default
from khop.distributed.processes.group import this_group
from khop.inference.chunks import InferenceWork, Progress
from khop.inference.evaluation import EdgeOutputs
from khop.inference.link_evaluation import (
    all_links,
    edge_scores,
    exact_edge_outputs,
    labeled_outputs,
    sampled_edge_outputs,
)
from khop.inference.predictions import EdgePredictions, LabelKind
from khop.models.encoder import ModelSizes
from khop.models.link_predictor import EdgeHead, EdgePredictor
from khop.models.stack import Layered
from khop.run.contexts import Evaluation, LinkSettings, TaskContext, exact_draws_of
from khop.run.parts import exclusion_of, in_flight_of, words_of
from khop.run.tasks.node_task import target_of
from khop.run.tasks.resolve_task import (
    LINKS_SPLIT,
    ClassOptions,
    NumberOptions,
    links_split,
    resolved_edge_classes,
    resolved_edge_numbers,
    targets_of,
)
from khop.sampling.links.link_seeds import LinkList
from khop.sampling.links.link_split import LinkColumns
from khop.sampling.sampler import Fanout, fanouts_by_type, followed_types
from khop.schema import EdgeType, NodeType
from khop.training.edge_tasks import EdgeClassification, EdgeObjective, EdgeRegression
from khop.training.metrics import METRICS, REGRESSION_METRICS, known_metric
from khop.training.tasks import LabelScale, class_weights

Hops = tuple[dict[EdgeType, int], ...]


@dataclass(frozen=True, eq=False)
class SplitEdges:
    """The split edges of the run's edge types, with the hops of training and evaluation."""

    whole: Graph  # the graph for inference: every edge of the model's edge types, with held-out edges
    edge_types: tuple[EdgeType, ...]  # the targets
    fanouts: Hops  # training fanouts, for the edge types that any hop follows and for the target types
    measured: Hops  # evaluation fanouts, for the edge types followed in training; empty: all neighbors
    split: LinkSplit
    followed: tuple[EdgeType, ...]  # edge types of the encoder: only the ones of a training hop

    @classmethod
    def of(cls, context: TaskContext, columns: LinkColumns) -> SplitEdges:
        """Split the edges as `links.split` says; equal runs get equal splits."""
        config, graph = context.config, context.graph
        edge_types = targets_of(config.task.target, graph.schema)
        hops, measured = (_hops(graph, of) for of in (config.sampler.fanouts, config.evaluation.fanouts))
        followed = followed_types(graph.schema, hops)
        ends = {*edge_types, *map(graph.schema.reverse, edge_types)}
        kept = tuple(t for t in graph.schema.edge_types if t in followed or t in ends)
        graph = graph.only(kept)
        split = _split_of_edges(context, graph, edge_types, columns)
        train = context.placed(split.train)
        split = replace(split, train=train, val=train if split.val is split.train else split.val)
        return cls(
            graph,
            edge_types,
            tuple({t: hop[t] for t in kept} for hop in hops),
            tuple({t: hop[t] if t in followed else 0 for t in kept} for hop in measured),
            split,
            tuple(t for t in kept if t in followed),
        )

    @property
    def edge_type(self) -> EdgeType:
        """The only target."""
        (edge_type,) = self.edge_types
        return edge_type

    @property
    def ends(self) -> tuple[NodeType, ...]:
        """The node types at the ends of the targets."""
        return tuple(dict.fromkeys(end for t in self.edge_types for end in (t[0], t[2])))

    def model(self, context: TaskContext, around: Callable[[nn.Module], nn.Module]) -> nn.Module:
        """Build the run's model as an encoder of both endpoints, and wrap it."""
        table = context.config.model
        embeddings = (table.embedding, table.embedding_update, table.embedded_types, table.unknown)
        sizes = ModelSizes.of(self.split.train, self.ends, table.column, None, table.hidden, *embeddings)
        # Evaluation follows the edge types that the model has weights for.
        sizes = replace(sizes, edge_types=self.followed)
        return replace(context, graph=self.split.train).model(sizes, around)


def work_of(context: TaskContext, graph: Graph, progress: Progress) -> InferenceWork:
    """Return the chunk sizes of an evaluation and the distribution of chunks over ranks."""
    config = context.config
    in_flight, size = in_flight_of(config), config.evaluation.batch_size
    edges = config.evaluation.batch_edges
    return InferenceWork(size, progress, in_flight, this_group(), graph.lanes, edges)


def _hops(graph: Graph, fanouts: Sequence[Fanout]) -> Hops:
    return fanouts_by_type(graph.schema, fanouts)


def split_of_run(context: TaskContext, edge_types: Sequence[EdgeType]) -> str:
    """Return how the links of a run are split: random, time or column."""
    columns = {t: context.graph.schema.columns.get(t, {}) for t in edge_types}
    return links_split(context.config.links.split, columns, time_cut_offs(context.graph))


def facts_of_split(context: TaskContext, edge_types: Sequence[EdgeType]) -> dict[str, str]:
    """Return the fact that tells how the links of a run are split."""
    return {LINKS_SPLIT: split_of_run(context, edge_types)}


def _split_of_edges(
    context: TaskContext, graph: Graph, edge_types: Sequence[EdgeType], columns: LinkColumns
) -> LinkSplit:
    """Split the links as `links.split` says; `auto` uses the split that the import prepared."""
    links, seed = context.config.links, context.config.training.seed
    negatives, label, time, relation = columns.negatives, columns.label, columns.time, columns.relation
    cut_offs, chosen = time_cut_offs(context.graph), split_of_run(context, edge_types)
    if chosen == "column":
        return split_links_by_column(
            graph, edge_types, negatives=negatives, label=label, time=time, relation=relation, seed=seed
        )
    if chosen == "time":
        assert cut_offs is not None
        return split_links_by_time(
            graph,
            edge_types,
            cut_offs,
            negatives=negatives,
            label=label,
            time=time,
            relation=relation,
            seed=seed,
        )
    return split_links(
        graph,
        edge_types,
        links.val,
        links.test,
        negatives=negatives,
        label=label,
        time=time,
        relation=relation,
        seed=seed,
    )


@dataclass(frozen=True, eq=False)
class EdgeTask:
    """The task of a run over labels of edges: the split edges of one type, and a model with their outputs."""

    context: TaskContext
    parts: SplitEdges
    model: EdgePredictor
    task: EdgeObjective
    kind: LabelKind  # of the labels, for predictions

    @classmethod
    def of(
        cls,
        context: TaskContext,
        parts: SplitEdges,
        objective: EdgeObjective,
        outputs: int,
        kind: LabelKind = "by dtype",
        prepared: Callable[[EdgeHead], object] = lambda head: None,
    ) -> EdgeTask:
        """Make the task with a new model of `outputs` values per edge; `prepared` may change its head."""
        hidden = context.config.model.hidden

        def around(encoder: nn.Module) -> EdgePredictor:
            head = EdgeHead(hidden, outputs)
            prepared(head)
            return EdgePredictor(encoder, {parts.edge_type: head})

        model = parts.model(context, around)
        assert isinstance(model, EdgePredictor)
        return cls(context, parts, model, objective, kind)

    @property
    def facts(self) -> dict[str, str]:
        """How edges are split."""
        return facts_of_split(self.context, [self.edge_type])

    @property
    def whole(self) -> Graph:
        """The graph for inference: every edge of the model's edge types, with held-out edges."""
        return self.parts.whole

    @property
    def edge_type(self) -> EdgeType:
        """The edge type with the labels."""
        return self.parts.edge_type

    @property
    def splits(self) -> tuple[str, ...]:
        """The splits with held-out edges. Training edges are message edges, so they are not evaluated."""
        return tuple(self._held_out)

    @property
    def _held_out(self) -> Mapping[str, tuple[Graph, LinkList]]:
        """The graph for message passing and the edges to predict, by split."""
        split = self.parts.split
        return {"val": (split.val, split.val_links), "test": (split.test, split.test_links)}

    @property
    def node_types(self) -> tuple[NodeType, ...]:
        """The node types at the ends of the edges."""
        return tuple(dict.fromkeys((self.edge_type[0], self.edge_type[2])))

    def loader(self) -> Loader:
        """Make the loader of training batches, which exclude the edges of a step and their reverses."""
        split = self.parts.split
        context = replace(self.context, graph=split.train)
        exclude = exclusion_of(self.context.config, split.train.schema, [self.edge_type])
        sampler = context.sampler(self.parts.fanouts, LinkSettings(None, exclude))
        return context.links_loader(sampler, split.train_links, self.model.encoder)

    def scores(
        self, splits: tuple[str, ...], progress: Progress, extra_metrics: Sequence[str] = ()
    ) -> dict[str, float]:
        """Compute the task's metric and `extra_metrics` on each split, over the edges it may use."""
        return self.evaluated(splits, progress, extra_metrics).scores

    def evaluated(
        self, splits: tuple[str, ...], progress: Progress, extra_metrics: Sequence[str] = ()
    ) -> Evaluation:
        """Compute scores and baselines, and keep labels and outputs of the edges."""
        metrics = [known_metric(name, self.task.metrics) for name in extra_metrics]
        found: dict[str, EdgeOutputs] = {}
        for name in splits:
            if name not in self._held_out:
                raise ValueError(
                    f"split {name!r}: only held-out edges can be evaluated, in {list(self._held_out)}"
                )
            graph, links = self._held_out[name]
            outputs = self._outputs(graph, links, progress)
            found[name] = labeled_outputs(links, self.edge_type, outputs)
        predictions = EdgePredictions(self.edge_type, found, self.kind)
        return Evaluation(
            edge_scores(self.task, found, metrics), predictions, self._baselines(found, metrics)
        )

    def _baselines(self, splits: Mapping[str, EdgeOutputs], extra_metrics: Sequence[str]) -> dict[str, float]:
        """Compute the metrics of the constant prediction on each split."""
        found: dict[str, float] = {}
        for split, of_split in splits.items():
            constant = self.task.constant(self._training_labels, of_split.outputs.shape[1])
            if constant is None:
                continue
            outputs = constant.output.expand(of_split.labels.shape[0], -1)
            for metric in dict.fromkeys((self.task.metric, *extra_metrics)):
                score = self.task.score(outputs, of_split.labels, of_split.edges, metric)
                found[f"{split}/{constant.name}/{metric}"] = score
        return found

    @cached_property
    def _training_labels(self) -> Tensor:
        return edge_training_labels(self.parts)

    def _outputs(self, graph: Graph, links: LinkList, progress: Progress) -> Tensor:
        context = replace(self.context, graph=graph)
        config, encoder = context.config, self.model.encoder
        measured: Sequence[Fanout] = self.parts.measured
        if not measured and not isinstance(encoder, Layered):
            measured = context.all_neighbors(encoder, self.parts.fanouts)
        work = work_of(context, graph, progress)
        if not measured:
            draws = exact_draws_of(config, graph)
            return exact_edge_outputs(self.model, graph, graph.features, links, work, draws)[self.edge_type]
        sampler = context.neighbor_sampler(measured, LinkSettings(None, None))
        columns, seed = context.columns(encoder), config.training.seed
        found = sampled_edge_outputs(self.model, sampler, graph.features, links, columns, work, seed)
        return found[self.edge_type]


class ClassifyEdges:
    """One class per edge of a type."""

    @dataclass(frozen=True)
    class Options(ClassOptions):
        """Options of a task over classes of edges, as a run sets them."""

        classes: Annotated[Count | None, Default("one more than the largest label")] = None
        """Number of classes of the edge labels"""

    resolve = staticmethod(resolved_edge_classes)

    @staticmethod
    def build(options: Options, context: TaskContext) -> EdgeTask:
        """Make the task of predicting a class per edge."""
        _, label = target_of(context)
        parts, edge_type = _split(context, label)
        classes, loss = options.classes or _classes(parts, label), options.class_loss
        if options.class_weights == "balanced":
            loss = replace(loss, weights=class_weights(edge_training_labels(parts), classes))
        metric = known_metric(options.metric, METRICS)
        return EdgeTask.of(context, parts, EdgeClassification(edge_type, label, metric, loss), classes)


class RegressEdges:
    """Numbers per edge of a type."""

    Options = NumberOptions

    resolve = staticmethod(resolved_edge_numbers)

    @staticmethod
    def build(options: NumberOptions, context: TaskContext) -> EdgeTask:
        """Make the task of predicting the numbers of a label per edge."""
        _, label = target_of(context)
        parts, edge_type = _split(context, label)
        width = math.prod(context.graph.schema.column(edge_type, label).shape)
        scale = LabelScale((0.0,) * width, (1.0,) * width)
        if options.standardize == "train":
            scale = LabelScale.of(edge_training_labels(parts))
        metric = known_metric(options.metric, REGRESSION_METRICS)
        objective = EdgeRegression(edge_type, label, options.loss, metric, scale)

        def in_unit(head: EdgeHead) -> None:
            if options.standardize == "train":
                head.rescale(scale.mean, scale.deviation)

        return EdgeTask.of(context, parts, objective, width, "numbers", in_unit)


def edge_training_labels(parts: SplitEdges) -> Tensor:
    """Return the labels of the training edges, in their order. Collective if edges are partitioned."""
    return all_links(parts.split.train_links, parts.edge_type)[1]


def _classes(parts: SplitEdges, label: str) -> int:
    """Return one more than the largest label of all splits. Collective if edges are partitioned."""
    links = (parts.split.train_links, parts.split.val_links, parts.split.test_links)
    labels = torch.cat([all_links(of_part, parts.edge_type)[1] for of_part in links])
    if labels.numel() == 0 or int(labels.max()) < 0:
        raise ValueError(
            f"task.label is {label!r}: no edge of {words_of(parts.edge_type)} has a known {label}"
        )
    return int(labels.max()) + 1


def _split(context: TaskContext, label: str) -> tuple[SplitEdges, EdgeType]:
    parts = SplitEdges.of(context, LinkColumns(0, label, context.config.sampler.time))
    assert words_of(parts.edge_type) == context.config.task.target
    return parts, parts.edge_type
