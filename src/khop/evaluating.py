"""How good a model is, of a whole graph: what a training loop of one's own calls, on all ranks alike."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from khop.api import Graph
from khop.distributed.group import this_group, unwrapped
from khop.draw import GivenNegatives, NegativeMode, Rule, Uniform
from khop.loading.columns import ColumnChoice, NamesByType
from khop.models.link_predictor import LinkPredictor
from khop.sampling.fanouts import Fanout
from khop.sampling.link_seeds import LinkList
from khop.sampling.links import LinkSampler
from khop.sampling.neighbor import NeighborSampler
from khop.training.chunks import Progress, unwatched
from khop.training.evaluation import scores
from khop.training.inference import layerwise_inference, sampled_inference
from khop.training.link_evaluation import (
    check_metrics,
    check_rivals,
    check_untimed,
    exact_link_scores,
    mean_metrics,
)
from khop.training.link_prediction import LinkMetric
from khop.training.sampled_links import sampled_link_scores
from khop.training.tasks import NodeClassification


def evaluate(
    model: nn.Module,
    graph: Graph,
    *,
    split: str,
    task: NodeClassification | None = None,
    fanouts: Sequence[Fanout] | None = None,
    columns: Sequence[str] | NamesByType = ("x",),
    progress: Progress = unwatched,
) -> float:
    """The task's score on a split: by default accuracy on the graph's one label column.

    Exact, layer by layer over all neighbours, for a model that exposes its layers. With `fanouts`, of any
    model over a batch with these `columns`, on neighbourhoods that are the same in every evaluation.
    Collective: the ranks share the work, and each gets the score, which does not depend on their number. A
    model in DistributedDataParallel is taken out of it.
    """
    model, group = unwrapped(model), this_group()
    task = task or NodeClassification.of(graph.schema)
    node_type = task.node_type

    def outputs_of(nodes: Tensor) -> Tensor:
        if fanouts is None:
            return layerwise_inference(
                model, graph, graph.features, node_type, nodes=nodes, progress=progress, group=group
            )
        return sampled_inference(
            model,
            NeighborSampler(graph, fanouts),
            graph.features,
            node_type,
            nodes=nodes,
            columns=ColumnChoice.of(graph.schema, columns, (), ()),
            progress=progress,
            group=group,
        )

    nodes_by_type = graph.split(split)
    if node_type not in nodes_by_type:
        raise ValueError(
            f"split {split!r}: has nodes of {list(nodes_by_type)}, the task is about {node_type!r}"
        )
    group.meet("evaluating")
    with group.exchanging("evaluating"):
        return scores(task, graph.features, {split: nodes_by_type[node_type]}, outputs_of)[split]


def evaluate_links(
    model: nn.Module,
    graph: Graph,
    links: LinkList,
    *,
    metrics: Sequence[LinkMetric] = ("mrr", "roc-auc"),
    fanouts: Sequence[Fanout] | None = None,
    rule: Rule = Uniform(),  # noqa: B008
    columns: Sequence[str] | NamesByType = ("x",),
    progress: Progress = unwatched,
) -> dict[str, float]:
    """How well `model` tells links from their own negatives (see `khop.with_negatives`), by metric.

    Exact: the rows of all nodes are computed layer by layer over the edges of `graph`, then every pair is
    scored. With `fanouts`, every link is scored from a batch with these `columns`, as in training: for any
    encoder, and for links with times, by `rule=khop.Temporal(column)`; the neighbourhoods are the same in
    every evaluation. Let `graph` be without the links, as that of a split is. Of several edge types it is the
    mean. Collective, as `evaluate` is.
    """
    predictor, group = unwrapped(model), this_group()
    if not isinstance(predictor, LinkPredictor):
        raise ValueError(
            f"evaluate_links of a {type(predictor).__name__}: it takes a khop.models.LinkPredictor, "
            "an encoder with a decoder per edge type"
        )
    check_metrics(metrics)
    check_rivals(graph, links)
    group.meet("evaluating")
    with group.exchanging("evaluating"):
        if fanouts is None:
            check_untimed(links)
            exact = exact_link_scores(predictor, graph, graph.features, links, progress=progress, group=group)
            return mean_metrics(exact, metrics)
        scores_of_links = sampled_link_scores(
            predictor,
            LinkSampler(graph, fanouts, negatives=GivenNegatives(NegativeMode.TRIPLET), rule=rule),
            graph.features,
            links,
            columns=ColumnChoice.of(graph.schema, columns, (), ()),
            progress=progress,
            group=group,
        )
        return mean_metrics(scores_of_links, metrics)
