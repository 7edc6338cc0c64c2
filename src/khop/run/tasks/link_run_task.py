"""The link-prediction task: training negatives, and ranking of held-out links."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import torch
from torch import Tensor, nn

from khop.api.edges import in_degrees, relation_count
from khop.api.loader import Loader
from khop.api.open_graph import Graph
from khop.api.split_links import LinkSplit
from khop.distributed.processes.group import this_group
from khop.draw import (
    DegreeNegatives,
    DrawnNegatives,
    GivenNegatives,
    MixedNegatives,
    NegativeMode,
    Negatives,
    TableNegatives,
    UniformNegatives,
)
from khop.inference.chunks import Progress, evaluating, unwatched
from khop.inference.full_ranking import FullRanking, ScoresOf, TripleRanking, full_ranking, triple_ranking
from khop.inference.link_evaluation import (
    Scores,
    check_pair_labels,
    comparable,
    end_rows,
    ends_of_links,
    is_labeled,
    link_scores,
    mean_metrics,
    node_rows,
    popularity_scores,
    queries_of_links,
    sampled_link_scores,
    triples_of_links,
    with_other_sources,
)
from khop.inference.predictions import LinkPredictions
from khop.inference.stages import row_table
from khop.models.decoders import Dot, RelationDecoder
from khop.models.layer import parameter_name
from khop.models.link_predictor import LinkPredictor, RowsOfType
from khop.models.stack import Layered
from khop.run.contexts import Evaluation, LinkSettings, TaskContext, exact_draws_of
from khop.run.parts import exclusion_of, in_flight_of, words_of
from khop.run.run_type import built
from khop.run.tasks.edge_run_task import Hops, SplitEdges, facts_of_split, split_of_run, work_of
from khop.run.tasks.resolve_task import (
    MetricOptions,
    folder_of,
    reader_of_tables,
    resolved_links,
)
from khop.run.values import LinksTable
from khop.sampling.links.link_negatives import hard_negatives
from khop.sampling.links.link_seeds import LinkList, Links
from khop.sampling.links.link_split import LinkColumns
from khop.sampling.sampler import Fanout
from khop.sampling.seeds import array_bytes, digest_of
from khop.schema import EdgeType, EdgeTypeName, NodeType, Schema
from khop.training.edge_tasks import (
    FILTERED_AT,
    FULL_AT,
    LinkMetric,
    LinkPrediction,
    check_task_metric,
    is_full_metric,
    is_pair_metric,
)
from khop.training.link_losses import LinkLoss
from khop.training.tasks import POPULARITY
from khop.training.trainer_state import content_of

Embeddings = Mapping[NodeType, Tensor]  # (nodes, width), of all nodes of a type


def both_directions(links: Tensor, edge_type: EdgeType, schema: Schema) -> Tensor:
    """Return links, and their reverses if the edge type is undirected: splits list one direction only.

    `links` are int64 (2 or 3, n), sources first and destinations last.
    """
    is_undirected = schema.reverse(edge_type) == edge_type
    return torch.cat([links, links.flip(0)], dim=1) if is_undirected else links


def known_pairs(lists: Sequence[LinkList], edge_type: EdgeType, graph: Graph) -> Tensor:
    """Return the links of lists in both directions, and pairs of a node with itself, int64 (2, pairs)."""
    source, _, destination = edge_type
    ends = torch.cat([ends_of_links(links, edge_type) for links in lists], dim=1)
    known = both_directions(ends, edge_type, graph.schema)
    if source != destination:
        return known
    nodes = torch.arange(graph.num_nodes(source))
    return torch.cat([known, torch.stack([nodes, nodes])], dim=1)


def filtered_ranking(
    model: LinkPredictor, rows: Embeddings, links: LinkList, known: Sequence[LinkList], schema: Schema
) -> dict[str, float]:
    """Return "filtered-mrr" and "filtered-hits@k", averaged over both endpoints and edge types. Collective.

    `known` are the links of all splits: a known link is not a candidate when another link with the same
    relation and endpoint is ranked, and neither is its reverse in an undirected edge type.
    """
    found: list[TripleRanking] = []
    with evaluating(model):
        move = next(model.parameters(), torch.empty(0)).device
        for edge_type in links.counts:
            sources, destinations = (rows[end].to(move) for end in (edge_type[0], edge_type[2]))
            triples, *others = (triples_of_links(each, edge_type) for each in (links, *known))
            every = both_directions(torch.cat(others, dim=1), edge_type, schema)
            decoder = model.decoder(edge_type)
            found.append(triple_ranking(decoder, sources, destinations, triples, every, FILTERED_AT))
    mrr = sum(ranking.mrr for ranking in found) / len(found)
    hits = {f"filtered-hits@{k}": sum(ranking.hits[k] for ranking in found) / len(found) for k in FILTERED_AT}
    return {"filtered-mrr": mrr, **hits}


def rows_of_ends(
    context: TaskContext, model: LinkPredictor, graph: Graph, links: LinkList, progress: Progress
) -> dict[NodeType, Tensor]:
    """Return the embeddings of all nodes at the ends of links, over all neighbors in `graph`. Collective."""
    config = context.config
    ends = dict.fromkeys(end for edge_type in links.counts for end in (edge_type[0], edge_type[2]))
    draws = exact_draws_of(config, graph)
    return node_rows(
        model.encoder,
        graph,
        graph.features,
        list(ends),
        rule=draws.rule,
        fanouts=draws.fanouts,
        chunk_size=config.evaluation.batch_size,
        chunk_edges=config.evaluation.batch_edges,
        progress=progress,
        in_flight=in_flight_of(config),
        group=this_group(),
        lanes=graph.lanes,
    )


def candidate_ranking(
    model: LinkPredictor, rows: Embeddings, links: LinkList, seen: Sequence[LinkList], graph: Graph
) -> dict[str, float]:
    """Return "full-ndcg@k" and "full-recall@k", averaged over sources with links, then over edge types.

    Every node of the destination type is a candidate, except the source itself and its destinations in
    `seen`, the links of earlier splits. In an undirected edge type, both ends of a link are sources. An edge
    type whose links are all in `seen` is left out. Collective.
    """
    found: list[FullRanking] = []
    with evaluating(model):
        move = next(model.parameters(), torch.empty(0)).device
        for edge_type in links.counts:
            sources, destinations = (rows[end].to(move) for end in (edge_type[0], edge_type[2]))
            scores_of = partial(_scores, model.decoder(edge_type).grid, sources, destinations)
            held_out = both_directions(ends_of_links(links, edge_type), edge_type, graph.schema)
            known = known_pairs(seen, edge_type, graph)
            if _is_all_known(held_out, known, destinations.shape[0]):
                continue
            found.append(full_ranking(scores_of, held_out, known, destinations.shape[0], FULL_AT))
    means: dict[str, float] = {}
    for k in FULL_AT if found else ():
        means[f"full-ndcg@{k}"] = sum(ranking.ndcg[k] for ranking in found) / len(found)
        means[f"full-recall@{k}"] = sum(ranking.recall[k] for ranking in found) / len(found)
    return means


def mean_average_precision(
    model: LinkPredictor, rows: Embeddings, links: LinkList, graph: Graph, metrics: Sequence[LinkMetric]
) -> dict[str, float]:
    """Return map@K for each of `metrics`, averaged over edge types. Collective.

    A query is a source, or a source and a time for links with times, and every node of the destination type
    is a candidate. In an undirected edge type, both ends of a link are sources.
    """
    with evaluating(model):
        move = next(model.parameters(), torch.empty(0)).device
        scores_of = {
            t: partial(_scores, model.decoder(t).grid, rows[t[0]].to(move), rows[t[2]].to(move))
            for t in links.counts
        }
        return map_of_scores(scores_of, links, graph, metrics)


def map_of_scores(
    scores_of: Mapping[EdgeType, ScoresOf], links: LinkList, graph: Graph, metrics: Sequence[LinkMetric]
) -> dict[str, float]:
    """Return map@K for each of `metrics`, from the scores of all destinations of some sources. Collective."""
    at, found = [int(metric.partition("@")[2]) for metric in metrics], list[FullRanking]()
    for edge_type, of_sources in scores_of.items():
        sources, destinations = (graph.num_nodes(end) for end in edge_type[::2])

        def of_queries(queries: Tensor, scores: ScoresOf = of_sources, count: int = sources) -> Tensor:
            return scores(queries % count)

        queries = queries_of_links(links, edge_type, sources)
        if graph.schema.reverse(edge_type) == edge_type:
            queries = torch.cat([queries, _from_other_ends(queries, sources)], dim=1)
        nothing = torch.empty(2, 0, dtype=torch.int64)
        found.append(full_ranking(of_queries, queries, nothing, destinations, at))
    return {
        metric: sum(ranking.map[k] for ranking in found) / len(found)
        for metric, k in zip(metrics, at, strict=True)
    }


def _from_other_ends(queries: Tensor, num_nodes: int) -> Tensor:
    """Return the queries of links turned around, at the same dates."""
    sources = queries[0] % num_nodes
    return torch.stack([queries[1] + queries[0] - sources, sources])


def _is_all_known(held_out: Tensor, known: Tensor, num_destinations: int) -> bool:
    """Return True if each pair of `held_out`, (2, n), is in `known`, (2, m)."""
    keys, others = (sources * num_destinations + destinations for sources, destinations in (held_out, known))
    return bool(torch.isin(keys, others).all())


def _scores(
    grid: Callable[[Tensor, Tensor], Tensor], sources: Tensor, destinations: Tensor, queries: Tensor
) -> Tensor:
    """Return (queries, destinations): the scores of some sources."""
    return grid(sources[queries.to(sources.device)], destinations)


def _popularity_of(degrees: Tensor, queries: Tensor) -> Tensor:
    """Return (queries, destinations): the popularity of each destination, the same for all sources."""
    return degrees.expand(queries.numel(), -1)


TABLE = "hard_negatives"  # the model's buffer with a table, so that it is saved in checkpoints


@dataclass(frozen=True, eq=False)
class HardTables:
    """Hard negatives of each source: destinations with high scores that are not training links."""

    context: TaskContext
    split: LinkSplit
    model: LinkPredictor
    names: Mapping[EdgeType, str]  # of the buffers

    @classmethod
    def of(cls, context: TaskContext, split: LinkSplit, model: LinkPredictor) -> HardTables:
        """Add the tables to the model, filled with node 0 until they are computed before the first epoch."""
        types, count = model.edge_types, context.config.links.hard_negatives
        names = {t: TABLE if len(types) == 1 else f"{TABLE} {parameter_name(*t)}" for t in types}
        for edge_type, name in names.items():
            sources = split.train.num_nodes(edge_type[0])
            model.register_buffer(name, torch.zeros(sources, count, dtype=torch.int64))
        return cls(context, split, model, names)

    @property
    def tables(self) -> dict[EdgeType, Tensor]:
        """The tables, int64 (sources, negatives)."""
        return {t: self.model.get_buffer(name) for t, name in self.names.items()}

    def refresh(self, epoch: int) -> None:
        """Compute the tables before every `links.hard_every`-th epoch. Collective.

        Embeddings are computed over all neighbors in the training graph, and rounded: see
        `khop.hard_negatives`.
        """
        config, graph = self.context.config, self.split.train
        if epoch % config.links.hard_every:
            return
        rows = rows_of_ends(self.context, self.model, graph, self.split.train_links, unwatched)
        for edge_type, name in self.names.items():
            source, _, destination = edge_type
            decoder = self.model.decoder(edge_type)
            assert isinstance(decoder, Dot | RelationDecoder | RowsOfType)
            with torch.no_grad():
                search = decoder.search(rows[source], rows[destination])
            found = hard_negatives(
                search.queries,
                search.candidates,
                config.links.hard_negatives,
                known=known_pairs([self.split.train_links], edge_type, graph),
                original_ids=graph.original_ids(destination),
                score=search.score,
                grid=search.grid,
            )
            self.model.get_buffer(name).copy_(found)


def negatives_of(links: LinksTable, mode: NegativeMode, hard: Mapping[EdgeType, Tensor] | None) -> Negatives:
    """Return the training negatives in the order that the loss expects.

    Shared negatives come first, then those of each link, then the `hard` ones of tables by edge type.
    """
    parts: list[DrawnNegatives | TableNegatives] = []
    if links.shared_negatives:
        parts.append(_drawn(links, links.shared_negatives, mode, links.negatives_group))
    group = 1 if links.shared_negatives else links.negatives_group
    parts.append(_drawn(links, links.negatives_per_positive, mode, group))
    if hard is not None:
        parts.append(TableNegatives(hard, mode))
    return parts[0] if len(parts) == 1 else MixedNegatives(tuple(parts))


def _drawn(links: LinksTable, count: int, mode: NegativeMode, group: int) -> DrawnNegatives:
    exact = links.exact and group == 1
    if links.negatives == "degree":
        return DegreeNegatives(count, mode, exact, group=group, corrupt=links.corrupt)
    return UniformNegatives(count, mode, exact, group, links.corrupt)


BESIDE: tuple[LinkMetric, ...] = ("mrr", "roc-auc")  # always computed, in addition to the selection metric


@dataclass(frozen=True, eq=False)
class LinkTask:
    """The task of a link-prediction run: the split links of its edge types, and a model to score pairs."""

    context: TaskContext
    whole: Graph  # the graph for inference: every edge of the model's edge types, with held-out links
    edge_types: tuple[EdgeType, ...]
    fanouts: Hops  # training fanouts, for the edge types that any hop follows and for the target types
    measured: Hops  # evaluation fanouts, for the edge types followed in training; empty: all neighbors
    split: LinkSplit
    model: LinkPredictor
    task: LinkPrediction
    hard: HardTables | None = None  # with links.hard_negatives
    given: Mapping[str, Links] = field(default_factory=dict)  # links with negatives from a file, by split
    given_sources: Mapping[str, Tensor] = field(
        default_factory=dict
    )  # (links, k): those that replace sources
    popularity: dict[str, float] = field(default_factory=dict)  # cached, because training does not change it

    @classmethod
    def of(cls, context: TaskContext) -> LinkTask:
        """Split links, draw pairs and make a new model; equal runs get equal results."""
        config, links, hidden = context.config, context.config.links, context.config.model.hidden
        assert config.task.metric is not None, "resolved"
        columns = LinkColumns(links.drawn_eval_negatives, None, config.sampler.time, links.relation)
        parts = SplitEdges.of(context, columns)
        relations = _relations(context, parts.edge_types)

        def around(encoder: nn.Module) -> LinkPredictor:
            return LinkPredictor.of(encoder, parts.edge_types, links.decoder, hidden, relations)

        model = parts.model(context, around)
        assert isinstance(model, LinkPredictor)
        task = LinkPrediction(built(config, "links.loss", context), config.task.metric)
        ends = (parts.whole, parts.edge_types, parts.fanouts, parts.measured)
        hard = None
        if links.hard_negatives:
            hard = HardTables.of(context, parts.split, model)
        given, sources = _with_given_negatives(context, parts)
        compared = [metric for metric in [task.metric] if not is_full_metric(metric)]
        for links_of_split in given.values():
            if is_labeled(links_of_split):
                check_pair_labels(links_of_split, compared)
        return cls(context, *ends, parts.split, model, task, hard, given, sources)

    @property
    def edge_type(self) -> EdgeType:
        """The only target; ValueError for a run of several."""
        if len(self.edge_types) > 1:
            raise ValueError(
                f"task.target is {self.context.config.task.target!r}: pairs and recommendations need a "
                "single edge type; train a run with one target"
            )
        return self.edge_types[0]

    @property
    def facts(self) -> dict[str, str]:
        """How links are split, and digests of the negatives from files."""

        def digest(links: Links, sources: Tensor | None) -> str:
            parts = [
                part for of in (links.edges, links.negatives, links.labels) for part in (of or {}).values()
            ]

            def hash_into(update: Callable[[bytes | memoryview], None]) -> None:
                for part in parts if sources is None else [*parts, sources]:
                    update(f"{tuple(part.shape)}:".encode())
                    update(array_bytes(part))

            return digest_of(hash_into)

        return facts_of_split(self.context, self.edge_types) | {
            content_of(f"links.{split}_negatives"): digest(links, self.given_sources.get(split))
            for split, links in self.given.items()
        }

    @property
    def splits(self) -> tuple[str, ...]:
        """The splits with held-out links. Training links are message edges, so they are not evaluated."""
        return tuple(self._held_out)

    @property
    def _held_out(self) -> Mapping[str, tuple[Graph, LinkList]]:
        """The graph for message passing and the links to score, by split."""
        split = self.split
        return {"val": (split.val, split.val_links), "test": (split.test, split.test_links)}

    @property
    def node_types(self) -> tuple[NodeType, ...]:
        """The node types at the ends of the links."""
        return tuple(dict.fromkeys(end for t in self.edge_types for end in (t[0], t[2])))

    def loader(self) -> Loader:
        """Make the loader of training batches, which exclude the links of a step and their reverse edges.

        Raises ValueError if evaluations cannot compute the metric, before training.
        """
        if is_full_metric(self.task.metric):
            check_full_metric(self.context, self.edge_types, self.task.metric)
        context = replace(self.context, graph=self.split.train)
        exclude = exclusion_of(self.context.config, self.split.train.schema, self.edge_types)
        sampler = context.sampler(
            self.fanouts, LinkSettings(self.negatives(), exclude, self.context.config.links.relation)
        )
        return context.links_loader(sampler, self.split.train_links, self.model.encoder)

    def scores(
        self, splits: tuple[str, ...], progress: Progress, extra_metrics: Sequence[str] = ()
    ) -> dict[str, float]:
        """Compute every metric on each split, over the edges that the split may use."""
        return self.evaluated(splits, progress, extra_metrics).scores

    def evaluated(
        self, splits: tuple[str, ...], progress: Progress, extra_metrics: Sequence[str] = ()
    ) -> Evaluation:
        """Compute scores and baselines, and keep the scores of the links and their negatives."""
        found: dict[str, float] = {}
        baselines: dict[str, float] = {}
        kept: dict[str, tuple[LinkList, Scores]] = {}
        asked = [check_task_metric(name) for name in extra_metrics]
        for name in splits:
            if name not in self._held_out:
                raise ValueError(
                    f"split {name!r}: only held-out links can be evaluated, in {list(self._held_out)}"
                )
            every = dict.fromkeys((self.task.metric, *BESIDE, *asked))
            full = [metric for metric in every if is_full_metric(metric)]
            metrics = [metric for metric in every if not is_full_metric(metric)]
            for metric in full:
                check_full_metric(self.context, self.edge_types, metric)
            graph, links = self._scored(name)
            if isinstance(links, Links) and is_labeled(links):
                metrics = [m for m in metrics if is_pair_metric(m) or m in asked or m == self.task.metric]
                check_pair_labels(links, metrics)
            rows, options = None, self.context.config.links
            if full or options.filtered or options.ranking:
                rows = rows_of_ends(self.context, self.model, graph, links, progress)
            links, scored = self._compared(name, links, self._scoring(graph, links, rows, progress))
            kept[name] = (links, scored)
            measured = mean_metrics(scored, metrics, links)
            if rows is not None:
                measured |= self._ranked(name, rows, full)
            found[name] = measured.pop(self.task.metric)
            found |= {f"{name}/{metric}": value for metric, value in measured.items()}
            found |= _by_type(name, scored, metrics)
            baselines |= self._popularity(name, [*metrics, *full])
        return Evaluation(found, LinkPredictions(self.edge_types, kept), baselines)

    def _scored(self, split: str) -> tuple[Graph, LinkList]:
        """Return the graph for message passing and the links to score, with negatives of a file if any."""
        graph, links = self._held_out[split]
        return graph, self.given.get(split, links)

    def _compared(
        self, split: str, links: LinkList, score: Callable[[LinkList], Scores]
    ) -> tuple[LinkList, Scores]:
        """Score links and their negatives; those that replace the source are added to the others."""
        scored, sources = score(comparable(links)), self.given_sources.get(split)
        if sources is None:
            return links, scored
        assert isinstance(links, Links), "made from a file"
        assert links.negatives is not None, "lists"
        ((edge_type, (of_links, of_negatives)),) = scored.items()
        others = score(comparable(with_other_sources(links, sources)))[edge_type][0].view(sources.shape)
        negatives = torch.cat([links.negatives[edge_type], sources], 1)
        together = torch.cat([of_negatives, others], 1)
        return replace(links, negatives={edge_type: negatives}), {edge_type: (of_links, together)}

    def _ranked(self, split: str, rows: Embeddings, metrics: Sequence[LinkMetric]) -> dict[str, float]:
        """Rank the links of a split among all nodes: map@K of `metrics`, and what the run file requests."""
        (graph, links), options = self._held_out[split], self.context.config.links
        found: dict[str, float] = {}
        if metrics:
            found |= mean_average_precision(self.model, rows, links, graph, metrics)
        if options.filtered:
            known = (self.split.train_links, self.split.val_links, self.split.test_links)
            found |= filtered_ranking(self.model, rows, links, known, graph.schema)
        if options.ranking:
            found |= candidate_ranking(self.model, rows, links, self._before(split), graph)
        return found

    def _before(self, split: str) -> list[LinkList]:
        """Return the links of earlier splits: training, and for test also validation."""
        return [self.split.train_links, self.split.val_links][: 1 + (split == "test")]

    def _popularity(self, split: str, metrics: Sequence[LinkMetric]) -> dict[str, float]:
        """Compute the metrics with in-degrees as scores, over the message graph of this split."""
        names: dict[str, str] = {metric: f"{split}/{POPULARITY}/{metric}" for metric in metrics}
        if any(name not in self.popularity for name in names.values()):
            graph, links = self._scored(split)
            before = self._before(split)
            sharing = work_of(self.context, graph, unwatched).sharing(graph, graph.features)
            counts = {node_type: graph.num_nodes(node_type) for node_type in self.node_types}
            degrees = {t: in_degrees(graph, t, before) for t in self.edge_types}
            score = partial(popularity_scores, degrees, counts, sharing=sharing)
            links, scores = self._compared(split, links, score)
            full = [metric for metric in metrics if is_full_metric(metric)]
            of_metrics = mean_metrics(scores, [metric for metric in metrics if metric not in full], links)
            if full:
                rows = {t: partial(_popularity_of, of.double()) for t, of in degrees.items()}
                of_metrics |= map_of_scores(rows, self._held_out[split][1], graph, full)
            self.popularity.update({names[metric]: value for metric, value in of_metrics.items()})
        return {name: self.popularity[name] for name in names.values()}

    def _scoring(
        self, graph: Graph, links: LinkList, rows: Embeddings | None, progress: Progress
    ) -> Callable[[LinkList], Scores]:
        """Return the function that scores links of the types of `links`, and their negatives. Collective.

        Exact scores are decoded from `rows`, which are computed once if they are None.
        """
        context = replace(self.context, graph=graph)
        config, encoder = context.config, self.model.encoder
        measured: Sequence[Fanout] = self.measured
        if not measured and not isinstance(encoder, Layered):
            measured = context.all_neighbors(encoder, self.fanouts)
        work = work_of(context, graph, progress)
        if measured:
            given = LinkSettings(GivenNegatives(NegativeMode.TRIPLET), exclude=None)
            return partial(
                sampled_link_scores,
                self.model,
                context.neighbor_sampler(measured, given),
                graph.features,
                columns=context.columns(encoder),
                work=work,
                seed=config.training.seed,
            )
        if rows is None:
            draws = exact_draws_of(config, graph)
            store, sharing = end_rows(encoder, graph, graph.features, links, work, draws)
            return partial(link_scores, self.model, store, sharing=sharing)
        sharing = work.sharing(graph, graph.features)
        return partial(link_scores, self.model, row_table(rows), sharing=sharing)

    def negatives(self) -> Negatives:
        """Return the negatives of training."""
        assert isinstance(self.task.loss, LinkLoss)
        hard = None if self.hard is None else self.hard.tables
        return negatives_of(self.context.config.links, self.task.loss.mode, hard)

    def before_epoch(self, epoch: int) -> None:
        """Compute the tables of hard negatives, if the run uses them and they are due. Collective."""
        if self.hard is not None:
            self.hard.refresh(epoch)


class PredictLinks:
    """Scores of the links of an edge type."""

    Options = MetricOptions

    resolve = staticmethod(resolved_links)

    @staticmethod
    def build(options: MetricOptions, context: TaskContext) -> LinkTask:
        """Make the task of scoring the links of one or several edge types."""
        return LinkTask.of(context)


def check_full_metric(context: TaskContext, edge_types: Sequence[EdgeType], metric: LinkMetric) -> None:
    """Raise ValueError if a metric that ranks all destinations would use edges later than the links.

    Its embeddings do not depend on the time of a link: they are computed over all edges that a split may use.
    """
    config = context.config
    if config.sampler.time is None:
        return
    split = split_of_run(context, edge_types)
    if split != "time":
        raise ValueError(
            f"{metric} with sampler.time {config.sampler.time!r} and links that are split by {split}: it "
            'ranks all destinations over edges of any time; set links.split = "time", or another metric'
        )
    try:
        exact_draws_of(config, context.graph)
    except ValueError as error:
        raise ValueError(f"{metric} ranks all destinations over all neighbors: {error}") from None


def _with_given_negatives(
    context: TaskContext, parts: SplitEdges
) -> tuple[dict[str, Links], dict[str, Tensor]]:
    """Return the held-out links of the splits with negatives from a file, and other sources. Collective."""
    config, found, of_sources = context.config, dict[str, Links](), dict[str, Tensor]()
    for split, links in (("val", parts.split.val_links), ("test", parts.split.test_links)):
        path: str | None = getattr(config.links, f"{split}_negatives")
        if path is not None:
            files = reader_of_tables("given_negatives").NegativeFile
            where = (f"links.{split}_negatives", parts.edge_types[0], folder_of(config, context.graph))
            found[split], sources = files.open(path, *where).joined_to(links)
            if sources is not None:
                of_sources[split] = sources
    return found, of_sources


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
