"""Evaluation of a model over a whole graph, for custom training loops; collective over all ranks."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from torch import Tensor, nn

from khop.api.loader import Loader
from khop.api.open_graph import Graph
from khop.api.time_split import edges_of_split
from khop.arguments import graph_of, instance_of
from khop.draw import GivenNegatives, NegativeMode, Negatives
from khop.inference.chunks import Progress, unwatched
from khop.inference.collective_chunks import InferenceWork
from khop.inference.edge_outputs import (
    check_labeled,
    exact_edge_outputs,
    labeled_outputs,
    sampled_edge_outputs,
)
from khop.inference.evaluation import scores
from khop.inference.exact_draws import ExactDraws, takes_fanouts, unknown_fanouts
from khop.inference.forward_inputs import all_neighbors, columns_read, evaluation_sampler
from khop.inference.link_evaluation import (
    check_metrics,
    check_negatives,
    check_pair_labels,
    check_untimed,
    comparable,
    exact_link_scores,
    is_labeled,
    mean_metrics,
)
from khop.inference.node_outputs import layerwise_inference, sampled_inference
from khop.inference.sampled_links import sampled_link_scores
from khop.loading.columns import ColumnChoice, NamesByType
from khop.models.edge_predictor import EdgePredictor
from khop.models.layered import Layered
from khop.models.link_predictor import LinkPredictor
from khop.rules.rule import Rule
from khop.rules.uniform import Uniform
from khop.runtime.group import Group, this_group, unwrapped
from khop.sampling.fanouts import Fanout
from khop.sampling.link_seeds import LinkList, Links, check_links
from khop.sampling.links import LinkSampler
from khop.sampling.listed import ids_here
from khop.training.edge_tasks import EdgeObjective
from khop.training.link_prediction import LinkMetric
from khop.training.tasks import NodeClassification, NodeObjective


def evaluate(
    model: nn.Module,
    graph: Graph,
    *,
    split: str,
    task: NodeObjective | None = None,
    fanouts: Sequence[Fanout] | None = None,
    columns: Sequence[str] | NamesByType | None = None,
    loader: Loader | None = None,
    progress: Progress = unwatched,
) -> float:
    """Compute the task's score on a split; the default task is accuracy on the graph's only label column.

    A task of your own is an objective with the members of `khop.NodeClassification`.

    Without `fanouts` the score is exact. A model that exposes its layers (`khop.models.Sequential`,
    `Layered`) is evaluated layer by layer over all neighbors. For another model, `model(batch)` runs on
    batches of all neighbors, and a warning says so. The number of hops then comes from `loader`, the loader
    that the model is trained with, or from the model's `num_layers`. With `fanouts`, `model(batch)` runs on
    sampled neighborhoods, which are the same in every evaluation.

    In a graph that an import has split by time, messages pass over the edges that the split may use: training
    those before `val`, validation those before `test`, test all.

    Batches have `columns`, by default the model's `input_columns`, else the loader's columns, else all node
    columns except labels. Neighbors are drawn, or all weighed, by the rule of the loader's sampler.
    Collective: the ranks share the work, and every rank gets the score, which does not depend on their
    number. A model in DistributedDataParallel is unwrapped.
    """
    graph_of("graph", graph)
    graph = edges_of_split(graph, split)
    if task is not None:
        remedy = "must be a khop.NodeClassification, or an objective with all members of one"
        instance_of("task", task, NodeObjective, remedy)
    model, group = unwrapped(model), this_group()
    task = NodeClassification.of(graph.schema) if task is None else task
    node_type = task.node_type
    hops = _hops(model, fanouts, loader, group)

    def outputs_of(nodes: Tensor) -> Tensor:
        if hops is None:
            rule = _rule_of(loader)
            draws = _draws(rule, graph, model, loader, fanouts)
            place = (model, graph, graph.features, node_type)
            compute = partial(layerwise_inference, *place, rule=rule, fanouts=draws.fanouts)
        else:
            chosen = columns_read(model, graph.schema, columns, None if loader is None else loader.columns)
            like = None if loader is None else loader.graph_sampler
            sampler = evaluation_sampler(graph, hops, chosen, like)
            compute = partial(sampled_inference, model, sampler, graph.features, node_type, columns=chosen)
        return compute(nodes=nodes, progress=progress, group=group, lanes=graph.lanes)

    nodes_by_type = graph.split(split)
    if node_type not in nodes_by_type:
        raise ValueError(
            f"split {split!r}: has nodes of {list(nodes_by_type)}, the task is about {node_type!r}"
        )
    group.meet("evaluating")
    with group.exchanging("evaluating"):
        return scores(task, graph.features, {split: ids_here(nodes_by_type[node_type])}, outputs_of)[split]


def evaluate_links(
    model: nn.Module,
    graph: Graph,
    links: LinkList,
    *,
    metrics: Sequence[LinkMetric] | None = None,
    fanouts: Sequence[Fanout] | None = None,
    rule: Rule | None = None,
    columns: Sequence[str] | NamesByType | None = None,
    loader: Loader | None = None,
    progress: Progress = unwatched,
) -> dict[str, float]:
    """Compute metrics of a link-prediction model: each link is compared with its own negatives.

    Negatives come with the links (see `khop.with_negatives`). Where links have different numbers of them, pad
    the rows with -1. Links with labels instead, 1 for a link and 0 for a negative, as
    `khop.links_from_pyg` gives them, are compared with each other. `metrics` are "mrr", "roc-auc",
    "average-precision", and "hits@K", "recall@K" and "ndcg@K" for any K, such as "hits@50"; by default "mrr"
    and "roc-auc", for labels "roc-auc" and "average-precision", the metrics that labels have.

    Without `fanouts` the result is exact: the rows
    of all nodes are computed layer by layer over the edges of `graph`, then every pair is scored. If the
    encoder does not expose its layers, every link is scored from a batch of all neighbors, and a warning says
    so. Neighbors are weighed by `rule`: by default that of the sampler of `loader`, else `khop.Uniform()`.

    With `fanouts`, every link is scored from a sampled batch, as in training. This works for any encoder, and
    for links with times, with `rule=khop.Temporal(column)`. The neighborhoods are the same in every
    evaluation.

    `columns` and `loader` have the meaning they have in `evaluate`, for the encoder. A rule that takes the
    same edges in exact inference, such as `TopK`, needs `loader` or `fanouts`. `graph` should not contain the
    links, as with the graph of a split. With several edge types each metric is the mean over
    them. Collective, as `evaluate` is.
    """
    graph_of("graph", graph)
    predictor, group = unwrapped(model), this_group()
    if not isinstance(predictor, LinkPredictor):
        raise ValueError(
            f"evaluate_links of a {type(predictor).__name__}: it takes a khop.models.LinkPredictor, "
            "an encoder with a decoder per edge type"
        )
    if metrics is None:
        metrics = ("roc-auc", "average-precision") if is_labeled(links) else ("mrr", "roc-auc")
    check_metrics(metrics)
    links = links.of_schema(graph.schema) if isinstance(links, Links) else links
    check_negatives(graph, links)
    if isinstance(links, Links) and is_labeled(links):
        check_pair_labels(links, metrics)
    given, links = links, comparable(links)
    encoder = predictor.encoder
    if fanouts is None:
        check_untimed(links)
    rule = _rule_of(loader) if rule is None else rule
    draws = _draws(rule, graph, encoder, loader, fanouts)
    hops = _hops(encoder, fanouts, loader, group)
    of_loader = None if loader is None else loader.columns
    group.meet("evaluating")
    with group.exchanging("evaluating"):
        if hops is None:
            work = InferenceWork(8192, progress, group=group, lanes=graph.lanes)
            exact = exact_link_scores(predictor, graph, graph.features, links, work, draws)
            return mean_metrics(exact, metrics, given)
        chosen = columns_read(encoder, graph.schema, columns, of_loader)
        scores_of_links = sampled_link_scores(
            predictor,
            _link_sampler(graph, hops, chosen, GivenNegatives(NegativeMode.TRIPLET), rule),
            graph.features,
            links,
            chosen,
            InferenceWork(1024, progress, group=group, lanes=graph.lanes),
        )
        return mean_metrics(scores_of_links, metrics, given)


def evaluate_edges(
    model: nn.Module,
    graph: Graph,
    links: LinkList,
    task: EdgeObjective,
    *,
    fanouts: Sequence[Fanout] | None = None,
    rule: Rule | None = None,
    columns: Sequence[str] | NamesByType | None = None,
    loader: Loader | None = None,
    progress: Progress = unwatched,
) -> float:
    """Compute the score of a task over labels of edges, such as `khop.EdgeClassification`.

    `links` have labels, as by `khop.split_links(label=...)`. `model` is a `khop.models.EdgePredictor`.
    The other arguments, and the ways to compute, are as for `evaluate_links`. Collective.
    """
    graph_of("graph", graph)
    predictor, group = unwrapped(model), this_group()
    if not isinstance(predictor, EdgePredictor):
        raise ValueError(
            f"evaluate_edges of a {type(predictor).__name__}: it takes a khop.models.EdgePredictor, "
            "an encoder with a head per edge type"
        )
    instance_of("task", task, EdgeObjective, "must be a khop.EdgeClassification or EdgeRegression")
    if isinstance(links, Links):
        links = links.of_schema(graph.schema)
        check_links(graph, links)
    check_labeled(links, task.edge_type)
    encoder = predictor.encoder
    if fanouts is None:
        check_untimed(links)
    rule = _rule_of(loader) if rule is None else rule
    draws = _draws(rule, graph, encoder, loader, fanouts)
    hops = _hops(encoder, fanouts, loader, group)
    of_loader = None if loader is None else loader.columns
    group.meet("evaluating")
    with group.exchanging("evaluating"):
        work = InferenceWork(8192 if hops is None else 1024, progress, group=group, lanes=graph.lanes)
        if hops is None:
            found = exact_edge_outputs(predictor, graph, graph.features, links, work, draws)
        else:
            chosen = columns_read(encoder, graph.schema, columns, of_loader)
            sampler = _link_sampler(graph, hops, chosen, None, rule)
            found = sampled_edge_outputs(predictor, sampler, graph.features, links, chosen, work)
        outputs = labeled_outputs(links, task.edge_type, found[task.edge_type])
        return task.score(outputs.outputs, outputs.labels, outputs.edges)


def _rule_of(loader: Loader | None) -> Rule:
    """Return the rule of training: that of the loader's sampler, if there is a loader."""
    return Uniform() if loader is None else loader.graph_sampler.rule


def _link_sampler(
    graph: Graph, hops: Sequence[Fanout], columns: ColumnChoice, negatives: Negatives | None, rule: Rule
) -> LinkSampler:
    """Return a sampler that gives edge ids if the model reads edge columns."""
    return LinkSampler(graph, hops, negatives=negatives, rule=rule, edge_ids=bool(columns.of_edges))


def _draws(
    rule: Rule, graph: Graph, model: nn.Module, loader: Loader | None, fanouts: Sequence[Fanout] | None
) -> ExactDraws:
    """Return the draws of exact evaluation, with the fanouts of the loader's sampler if it states some."""
    if loader is not None:
        every = [-1] * getattr(model, "num_layers", 0)
        return ExactDraws(rule, loader.graph_sampler.exact_fanouts or every)
    if fanouts is None and takes_fanouts(rule, graph.schema, graph.schema.edge_types):
        raise unknown_fanouts(rule)
    return ExactDraws(rule)


def _hops(
    model: nn.Module, fanouts: Sequence[Fanout] | None, loader: Loader | None, group: Group
) -> Sequence[Fanout] | None:
    """Return the fanouts of batches; None if the model is computed layer by layer, without batches."""
    if fanouts is not None or isinstance(model, Layered):
        return fanouts
    return all_neighbors(model, None if loader is None else loader.graph_sampler, warn=group.rank == 0)
