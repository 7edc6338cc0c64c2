"""Link-prediction runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from torch import Tensor, nn

from khop.api.in_degrees import in_degrees
from khop.api.loader import Loader
from khop.api.open_graph import Graph
from khop.api.relation_count import relation_count
from khop.api.split_links import LinkSplit
from khop.config.contexts import LinkSettings, TaskContext, rule_of
from khop.config.parts import exclusion_of
from khop.config.run_task import Evaluation
from khop.config.split_edges import Hops, SplitEdges, work_of
from khop.config.tables import BuiltinTask
from khop.draw import DegreeNegatives, GivenNegatives, NegativeMode, Negatives, UniformNegatives
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
from khop.training.link_prediction import LINK_METRICS, LinkMetric, LinkPrediction
from khop.training.metrics import known_metric

BESIDE: tuple[LinkMetric, ...] = ("mrr", "roc-auc")  # always computed, next to the selection metric


@dataclass(frozen=True, eq=False)
class LinkTask:
    """The task of a link-prediction run: the split links of one edge type, and a model to score pairs."""

    context: TaskContext
    whole: Graph  # the graph for inference: every edge of the model's edge types, with held-out links
    edge_type: EdgeType
    fanouts: Hops  # of training: for the edge types that any hop follows, and for the target type
    measured: Hops  # of evaluation: for the edge types followed in training; empty: all neighbors
    split: LinkSplit
    model: LinkPredictor
    task: LinkPrediction
    popularity: dict[str, float] = field(default_factory=dict)  # measured so far: no epoch changes it

    @classmethod
    def of(cls, context: TaskContext) -> LinkTask:
        """Split links, draw pairs and make a new model; equal runs get equal results."""
        config, links, hidden = context.config, context.config.links, context.config.model.hidden
        columns = LinkColumns(links.eval_negatives, None, config.sampler.time, links.relation)
        parts = SplitEdges.of(context, columns)
        relations = _relations(context, parts.edge_type)

        def around(encoder: nn.Module) -> LinkPredictor:
            return LinkPredictor.of(encoder, [parts.edge_type], links.decoder, hidden, relations)

        model = parts.model(context, around)
        assert isinstance(model, LinkPredictor)
        metric = known_metric(config.task.metric, LINK_METRICS)
        task = LinkPrediction(links.loss, metric, links.margin, links.temperature)
        ends = (parts.whole, parts.edge_type, parts.fanouts, parts.measured)
        return cls(context, *ends, parts.split, model, task)

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
        return tuple(dict.fromkeys((self.edge_type[0], self.edge_type[2])))

    def loader(self) -> Loader:
        """Make the loader of training batches, which exclude the links of a step and their reverse edges."""
        context = replace(self.context, graph=self.split.train)
        exclude = exclusion_of(self.context.config, self.split.train.schema, self.edge_type)
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
        kept: dict[str, tuple[LinkList, Tensor, Tensor]] = {}
        asked = [known_metric(name, LINK_METRICS) for name in beside]
        for name in splits:
            if name not in self._held_out:
                raise ValueError(
                    f"split {name!r}: only held-out links can be evaluated, in {list(self._held_out)}"
                )
            metrics = dict.fromkeys((self.task.metric, *BESIDE, *asked))
            graph, links = self._held_out[name]
            scored = self._link_scores(graph, links, progress)
            kept[name] = (links, *scored[self.edge_type])
            measured = mean_metrics(scored, tuple(metrics))
            found[name] = measured.pop(self.task.metric)
            found |= {f"{name}/{metric}": value for metric, value in measured.items()}
            baselines |= self._popularity(name, tuple(metrics))
        return Evaluation(found, LinkPredictions(self.edge_type, kept), baselines)

    def _popularity(self, split: str, metrics: Sequence[LinkMetric]) -> dict[str, float]:
        """Compute the metrics of in-degrees as scores, over the edges that carry messages in this split."""
        names: dict[str, str] = {metric: f"{split}/{POPULARITY}/{metric}" for metric in metrics}
        if any(name not in self.popularity for name in names.values()):
            graph, links = self._held_out[split]
            before = [self.split.train_links, self.split.val_links][: 1 + (split == "test")]
            degrees = in_degrees(graph, self.edge_type, before)
            sharing = work_of(self.context, graph, unwatched).sharing(graph, graph.features)
            count = graph.num_nodes(self.edge_type[0])
            scores = popularity_scores(self.edge_type, degrees, count, links, sharing)
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
        rule = rule_of(config, graph)
        return exact_link_scores(self.model, graph, graph.features, links, work, rule)

    def negatives(self) -> Negatives:
        """Return the negatives of training: separate pairs, or triplets for a ranking loss."""
        links = self.context.config.links
        mode = NegativeMode.BINARY if links.loss == "bce" else NegativeMode.TRIPLET
        given = (links.negatives_per_positive, mode, links.exact)
        if links.negatives == "degree":
            return DegreeNegatives(*given, group=links.negatives_group, corrupt=links.corrupt)
        return UniformNegatives(*given, links.negatives_group, links.corrupt)


def link_prediction(options: BuiltinTask, context: TaskContext) -> LinkTask:
    """Make the task of scoring the links of an edge type."""
    return LinkTask.of(context)


def _relations(context: TaskContext, edge_type: EdgeType) -> dict[EdgeTypeName, int]:
    """Return the number of relations of the edge type, if its links have a column of them."""
    links = context.config.links
    if links.relation is None:
        return {}
    return {edge_type: links.relations or relation_count(context.graph, edge_type, links.relation)}
