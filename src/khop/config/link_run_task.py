"""Link-prediction runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from torch import nn

from khop.api.in_degrees import in_degrees
from khop.api.loader import Loader
from khop.api.open_graph import Graph
from khop.api.relation_count import relation_count
from khop.api.split_links import AnyLinks, LinkSplit
from khop.config.candidate_ranking import candidate_ranking
from khop.config.contexts import LinkSettings, TaskContext, exact_draws_of
from khop.config.filtered_ranking import filtered_ranking
from khop.config.link_negatives import HardTables, negatives_of
from khop.config.parts import exclusion_of, words_of
from khop.config.run_task import Evaluation
from khop.config.split_edges import Hops, SplitEdges, work_of
from khop.config.tables import BuiltinTask
from khop.draw import GivenNegatives, NegativeMode, Negatives
from khop.inference.chunks import Progress, unwatched
from khop.inference.link_evaluation import Scores, exact_link_scores, mean_metrics
from khop.inference.popularity import popularity_scores
from khop.inference.predictions import LinkPredictions
from khop.inference.sampled_links import sampled_link_scores
from khop.models.layered import Layered
from khop.models.link_predictor import LinkPredictor
from khop.sampling.fanouts import Fanout
from khop.sampling.link_seeds import LinkList
from khop.sampling.link_split import LinkColumns
from khop.schema import EdgeType, EdgeTypeName, NodeType
from khop.training.baselines import POPULARITY
from khop.training.link_prediction import LinkMetric, LinkPrediction, check_link_metric

BESIDE: tuple[LinkMetric, ...] = ("mrr", "roc-auc")  # always computed, next to the selection metric


@dataclass(frozen=True, eq=False)
class LinkTask:
    """The task of a link-prediction run: the split links of its edge types, and a model to score pairs."""

    context: TaskContext
    whole: Graph  # the graph for inference: every edge of the model's edge types, with held-out links
    edge_types: tuple[EdgeType, ...]
    fanouts: Hops  # of training: for the edge types that any hop follows, and for the target types
    measured: Hops  # of evaluation: for the edge types followed in training; empty: all neighbors
    split: LinkSplit
    model: LinkPredictor
    task: LinkPrediction
    hard: HardTables | None = None  # with links.hard_negatives
    popularity: dict[str, float] = field(default_factory=dict)  # measured so far: no epoch changes it

    @classmethod
    def of(cls, context: TaskContext) -> LinkTask:
        """Split links, draw pairs and make a new model; equal runs get equal results."""
        config, links, hidden = context.config, context.config.links, context.config.model.hidden
        columns = LinkColumns(links.eval_negatives, None, config.sampler.time, links.relation)
        parts = SplitEdges.of(context, columns)
        relations = _relations(context, parts.edge_types)

        def around(encoder: nn.Module) -> LinkPredictor:
            return LinkPredictor.of(encoder, parts.edge_types, links.decoder, hidden, relations)

        model = parts.model(context, around)
        assert isinstance(model, LinkPredictor)
        assert config.task.metric is not None, "resolved"
        task = LinkPrediction(links.loss, config.task.metric, links.margin, links.temperature)
        ends = (parts.whole, parts.edge_types, parts.fanouts, parts.measured)
        hard = None
        if links.hard_negatives:
            hard = HardTables.of(context, parts.split, model)
        return cls(context, *ends, parts.split, model, task, hard)

    @property
    def edge_type(self) -> EdgeType:
        """The only target; ValueError for a run of several."""
        if len(self.edge_types) > 1:
            raise ValueError(
                f"task.target is {self.context.config.task.target!r}: pairs and recommendations are of one "
                "edge type; train a run of one"
            )
        return self.edge_types[0]

    @property
    def splits(self) -> tuple[str, ...]:
        """The splits with held-out links. Training links are messages, so they are not evaluated."""
        return tuple(self._held_out)

    @property
    def _held_out(self) -> Mapping[str, tuple[Graph, LinkList]]:
        """By split, the graph for message passing and the links to score."""
        split = self.split
        return {"val": (split.val, split.val_links), "test": (split.test, split.test_links)}

    @property
    def node_types(self) -> tuple[NodeType, ...]:
        """The node types at the ends of the links."""
        return tuple(dict.fromkeys(end for t in self.edge_types for end in (t[0], t[2])))

    def loader(self) -> Loader:
        """Make the loader of training batches, which exclude the links of a step and their reverse edges."""
        context = replace(self.context, graph=self.split.train)
        exclude = exclusion_of(self.context.config, self.split.train.schema, self.edge_types)
        sampler = context.sampler(
            self.fanouts, LinkSettings(self.negatives(), exclude, self.context.config.links.relation)
        )
        return context.links_loader(sampler, self.split.train_links, self.model.encoder)

    def scores(
        self, splits: tuple[str, ...], progress: Progress, beside: Sequence[str] = ()
    ) -> dict[str, float]:
        """Compute every metric on each split, over the edges that the split may use."""
        return self.evaluated(splits, progress, beside).scores

    def evaluated(
        self, splits: tuple[str, ...], progress: Progress, beside: Sequence[str] = ()
    ) -> Evaluation:
        """Compute scores and baselines, and keep the scores of the links and their negatives."""
        found: dict[str, float] = {}
        baselines: dict[str, float] = {}
        kept: dict[str, tuple[LinkList, Scores]] = {}
        asked = [check_link_metric(name) for name in beside]
        for name in splits:
            if name not in self._held_out:
                raise ValueError(
                    f"split {name!r}: only held-out links can be evaluated, in {list(self._held_out)}"
                )
            metrics = dict.fromkeys((self.task.metric, *BESIDE, *asked))
            graph, links = self._held_out[name]
            scored = self._link_scores(graph, links, progress)
            kept[name] = (links, scored)
            measured = mean_metrics(scored, tuple(metrics))
            found[name] = measured.pop(self.task.metric)
            found |= {f"{name}/{metric}": value for metric, value in measured.items()}
            found |= _by_type(name, scored, tuple(metrics))
            if self.context.config.links.filtered:
                found |= self._filtered(name, progress)
            if self.context.config.links.ranking:
                found |= self._ranked(name, progress)
            baselines |= self._popularity(name, tuple(metrics))
        return Evaluation(found, LinkPredictions(self.edge_types, kept), baselines)

    def _filtered(self, split: str, progress: Progress) -> dict[str, float]:
        """Rank both ends of the links of a split among all nodes, without the links of any split."""
        graph, links = self._held_out[split]
        known = (self.split.train_links, self.split.val_links, self.split.test_links)
        scores = filtered_ranking(self.context, self.model, graph, links, known, progress)
        return {f"{split}/{name}": score for name, score in scores.items()}

    def _ranked(self, split: str, progress: Progress) -> dict[str, float]:
        """Rank all destinations for each source of a split, without its links of the splits before."""
        graph, links = self._held_out[split]
        scores = candidate_ranking(self.context, self.model, graph, links, self._before(split), progress)
        return {f"{split}/{name}": score for name, score in scores.items()}

    def _before(self, split: str) -> list[AnyLinks]:
        """Return the links of the splits before a split: training, and for test also validation."""
        return [self.split.train_links, self.split.val_links][: 1 + (split == "test")]

    def _popularity(self, split: str, metrics: Sequence[LinkMetric]) -> dict[str, float]:
        """Compute the metrics of in-degrees as scores, over the edges that carry messages in this split."""
        names: dict[str, str] = {metric: f"{split}/{POPULARITY}/{metric}" for metric in metrics}
        if any(name not in self.popularity for name in names.values()):
            graph, links = self._held_out[split]
            before = self._before(split)
            sharing = work_of(self.context, graph, unwatched).sharing(graph, graph.features)
            counts = {node_type: graph.num_nodes(node_type) for node_type in self.node_types}
            degrees = {t: in_degrees(graph, t, before) for t in self.edge_types}
            scores = popularity_scores(degrees, counts, links, sharing)
            of_metrics = mean_metrics(scores, metrics)
            self.popularity.update({names[metric]: value for metric, value in of_metrics.items()})
        return {name: self.popularity[name] for name in names.values()}

    def _link_scores(self, graph: Graph, links: LinkList, progress: Progress) -> Scores:
        context = replace(self.context, graph=graph)
        config, encoder = context.config, self.model.encoder
        measured: Sequence[Fanout] = self.measured
        if not measured and not isinstance(encoder, Layered):
            measured = context.all_neighbors(encoder, self.fanouts)
        work = work_of(context, graph, progress)
        if measured:
            given = LinkSettings(GivenNegatives(NegativeMode.TRIPLET), exclude=None)
            return sampled_link_scores(
                self.model,
                context.neighbor_sampler(measured, given),
                graph.features,
                links,
                context.columns(encoder),
                work,
                config.training.seed,
            )
        draws = exact_draws_of(config, graph)
        return exact_link_scores(self.model, graph, graph.features, links, work, draws)

    def negatives(self) -> Negatives:
        """Return the negatives of training."""
        return negatives_of(self.context.config.links, None if self.hard is None else self.hard.tables)

    def before_epoch(self, epoch: int) -> None:
        """Compute the tables of hard negatives, if the run has some and they are due. Collective."""
        if self.hard is not None:
            self.hard.refresh(epoch)


def link_prediction(options: BuiltinTask, context: TaskContext) -> LinkTask:
    """Make the task of scoring the links of one or several edge types."""
    return LinkTask.of(context)


def _by_type(split: str, scored: Scores, metrics: Sequence[LinkMetric]) -> dict[str, float]:
    """Return the metrics of each of several edge types, as "val/user buys item/mrr"."""
    of_types = {t: mean_metrics({t: scores}, metrics) for t, scores in scored.items() if len(scored) > 1}
    return {
        f"{split}/{words_of(t)}/{metric}": value for t, of in of_types.items() for metric, value in of.items()
    }


def _relations(context: TaskContext, edge_types: Sequence[EdgeType]) -> dict[EdgeTypeName, int]:
    """Return the number of relations of each edge type, if links have a column of them."""
    links = context.config.links
    if links.relation is None:
        return {}
    return {t: links.relations or relation_count(context.graph, t, links.relation) for t in edge_types}
