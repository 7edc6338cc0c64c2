"""Evaluation on held-out links: rows of all nodes are computed first, then pairs are scored in chunks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace

import torch
from torch import Tensor, nn

from khop.arguments import graph_of, instance_of, seed_number
from khop.draw import DrawKey, DrawnNegatives, Positives, Purpose, check_drawn
from khop.exchange.lanes import Lanes
from khop.features.store import FeatureStore, Rows
from khop.graph.store import GraphStore
from khop.inference.chunk_bounds import CHUNK_EDGES, ChunkLimits
from khop.inference.chunks import Progress, evaluating, unwatched
from khop.inference.collective_chunks import InferenceWork
from khop.inference.dynamic_chunks import DynamicChunks, Sharing
from khop.inference.exact_draws import ALL_NEIGHBORS, ExactDraws
from khop.inference.layer_stores import Memory
from khop.inference.node_outputs import Layers
from khop.inference.stages import VALUES, Stage
from khop.loading.ordered_map import FEW_IN_FLIGHT, InFlight
from khop.models.link_predictor import LinkPredictor
from khop.models.relation_rows import scored
from khop.rules.rule import Rule
from khop.rules.uniform import Uniform
from khop.runtime.group import ALONE, Group
from khop.sampling.fanouts import Fanout
from khop.sampling.link_seeds import LinkList, Links, check_links
from khop.sampling.node_set import check_ids
from khop.schema import EdgeType, NodeType
from khop.training.link_prediction import PAIR_METRICS, LinkMetric, check_link_metric, link_metric
from khop.training.move import mover

Scores = dict[EdgeType, tuple[Tensor, Tensor]]  # scores of links (n), scores of their negatives (n, k)
PADDING = -1  # in the given negatives of links that have fewer than others
CHUNK_NUMBERS = 1 << 22  # values of both ends' rows that are decoded at a time


def node_rows(
    encoder: nn.Module,
    graph: GraphStore,
    features: FeatureStore,
    node_types: Sequence[NodeType],
    *,
    rule: Rule = Uniform(),
    fanouts: Sequence[Fanout] | None = None,
    chunk_size: int = 8192,
    chunk_edges: int = CHUNK_EDGES,
    progress: Progress = unwatched,
    in_flight: InFlight = FEW_IN_FLIGHT,
    group: Group = ALONE,
    lanes: Lanes | None = None,
) -> dict[NodeType, Tensor]:
    """Compute an encoder's rows for all nodes of some types: exact, layer by layer over all neighbors.

    The encoder must expose its layers (khop.models.Layered). Each layer is computed once for all types.
    Give the `rule` and the `fanouts` of training, as for `layerwise_inference`. The ranks of a group share
    the work.
    """
    chunks = ChunkLimits(chunk_size, chunk_edges)
    layers = Layers.of(
        encoder, graph, features, dict.fromkeys(node_types), chunks, draws=ExactDraws(rule, fanouts)
    )
    sharing = layers.sharing(lanes, group, in_flight)
    return layers.computed(sharing, sharing.layer_store(), progress, last=Memory(sharing.group))


def exact_link_scores(
    model: LinkPredictor,
    graph: GraphStore,
    features: FeatureStore,
    links: LinkList,
    work: InferenceWork,
    draws: ExactDraws = ALL_NEIGHBORS,
) -> Scores:
    """Score links and their negatives over all neighbors: (n) and (n, k) per edge type.

    The encoder first computes a row for every node; then the pairs are scored. The ranks of a group share the
    work.
    """
    rows, sharing = end_rows(model.encoder, graph, features, links, work, draws)
    return link_scores(model, rows, links, sharing)


def end_rows(
    encoder: nn.Module,
    graph: GraphStore,
    features: FeatureStore,
    links: LinkList,
    work: InferenceWork,
    draws: ExactDraws,
) -> tuple[FeatureStore, Sharing]:
    """Compute the rows of all nodes of the types at the ends of links; return their store and the sharing.

    Exact: layer by layer, by the rule of training.
    """
    ends = dict.fromkeys(end for edge_type in links.counts for end in (edge_type[0], edge_type[2]))
    chunks = ChunkLimits(work.chunk_size, work.chunk_edges)
    layers = Layers.of(encoder, graph, features, ends, chunks, draws=draws)
    sharing = work.sharing(graph, features)
    layer_store = sharing.layer_store()
    rows = layers.computed(sharing, layer_store, work.progress)
    return layer_store.store(layers.stages[-1], rows), sharing


def link_scores(
    model: LinkPredictor,
    rows: FeatureStore,
    links: LinkList,
    sharing: Sharing = DynamicChunks(),
) -> Scores:
    """Score links and their negatives from the rows of all nodes: (n) and (n, k) per edge type."""
    check_has_negatives(links)
    with evaluating(model):
        return {t: _scores(model, t, rows, links, sharing) for t in links.counts}


def check_negatives(graph: GraphStore, links: LinkList) -> None:
    """Raise ValueError unless links and their negatives or labels can be evaluated on the graph."""
    if not is_labeled(links):
        check_has_negatives(links)
    if isinstance(links, Links):  # others were made from a graph, and are valid
        check_links(graph, links)
        for edge_type, negatives in (links.negatives or {}).items():
            given = negatives[negatives != PADDING]
            check_ids(f"negatives of {edge_type}", given, graph.num_nodes(edge_type[2]))


def check_untimed(links: LinkList) -> None:
    """Raise ValueError for links with times: evaluation over all neighbors cannot respect them."""
    if "times" in links.facts:
        raise ValueError(
            "links have times, and evaluation over all neighbors would use later edges: give fanouts=[...] "
            "and rule=khop.Temporal(column), or leave the times out"
        )


def check_has_negatives(links: LinkList) -> None:
    """Raise ValueError for links without negatives: they cannot be evaluated."""
    if "negatives" not in links.facts:
        raise ValueError(
            "links without negatives cannot be evaluated: there is nothing to compare "
            "them with; give khop.Links(..., negatives=...), or labels of 0 and 1"
        )


def with_negatives(
    graph: GraphStore, links: Links, negatives: DrawnNegatives, seed: int = 0, time: str | None = None
) -> Links:
    """Return the same links with negatives drawn for them; the same seed draws the same negatives.

    `graph` is the graph from which negatives are drawn; exact negatives are no edges of it. Give the whole
    graph, with the held-out links in it, so that no held-out link is drawn as a negative. If links have
    times, `time` is the column of their destinations that states from when a destination exists.
    """
    check_drawn(negatives)
    graph_of("graph", graph)
    instance_of("links", links, Links, "give khop.Links(...) with the links in this process")
    links = links.of_schema(graph.schema)
    check_links(graph, links)
    if time is not None and links.times is None:
        raise ValueError(f"time {time!r}: the links have no times; give khop.Links(times=...)")
    key = DrawKey.of(seed_number(seed), Purpose.EVALUATION)
    drawn: dict[EdgeType, Tensor] = {}
    start = 0
    for edge_type, ends in links.edges.items():
        positions = torch.arange(start, start + ends.shape[1])
        times = None if links.times is None else links.times[edge_type]
        drawn[edge_type] = graph.sample_negatives(
            edge_type, negatives, Positives(ends[0], positions, times, time), key
        )
        start += ends.shape[1]
    return replace(links, negatives=drawn)


def mean_metrics(
    scores: Scores, metrics: Sequence[LinkMetric], links: LinkList | None = None
) -> dict[str, float]:
    """Compute each metric, averaged over the edge types.

    Negatives of `links` that are -1 pad a row, and are not compared. Links with labels and without negatives
    are compared with each other.
    """
    check_metrics(metrics)
    for edge_type, (of_links, _) in scores.items():
        if of_links.numel() == 0:
            raise ValueError(f"links of {edge_type}: there are none to evaluate; leave the edge type out")
    given = links if isinstance(links, Links) else None

    def of_type(metric: LinkMetric, edge_type: EdgeType) -> float:
        of_links, negatives = scores[edge_type]
        if given is not None and given.negatives is not None:
            return link_metric(metric, of_links, negatives, given.negatives[edge_type] != PADDING)
        if given is not None and given.labels is not None:
            return PAIR_METRICS[metric](of_links, given.labels[edge_type])
        return link_metric(metric, of_links, negatives)

    return {metric: sum(of_type(metric, t) for t in scores) / len(scores) for metric in metrics}


def check_metrics(metrics: Sequence[LinkMetric]) -> None:
    """Raise ValueError unless all names are metrics of links."""
    if isinstance(metrics, str):
        raise ValueError(f"metrics {metrics!r}: give a list of them, such as [{metrics!r}]")
    for metric in metrics:
        check_link_metric(metric)


def is_labeled(links: LinkList) -> bool:
    """Return True for links that are compared by labels, not with negatives."""
    return isinstance(links, Links) and links.negatives is None and links.labels is not None


def check_pair_labels(links: Links, metrics: Sequence[LinkMetric]) -> None:
    """Raise ValueError unless labels are 0 or 1, and all metrics are of labeled pairs."""
    for metric in metrics:
        if metric not in PAIR_METRICS:
            raise ValueError(
                f"metric {metric!r}: ranks each link among its own negatives, and these links have labels "
                f"alone; give metrics of {', '.join(PAIR_METRICS)}, or khop.Links(..., negatives=...)"
            )
    for edge_type, labels in (links.labels or {}).items():
        wrong = labels.flatten()[((labels != 0) & (labels != 1)).flatten()]
        if labels.dim() != 1 or wrong.numel():
            what = f"shape {tuple(labels.shape)}" if labels.dim() != 1 else f"value {wrong[0].item()}"
            raise ValueError(
                f"labels of {edge_type}: {what}; evaluate_links takes one label for each link, 1 for a link "
                "and 0 for a negative; khop.evaluate_edges scores other labels"
            )


def comparable(links: LinkList) -> LinkList:
    """Return links with negatives that can be scored: padding replaced, none for links with labels."""
    if not isinstance(links, Links):
        return links
    if links.negatives is None:
        nothing = {t: ends.new_zeros(ends.shape[1], 0) for t, ends in links.edges.items()}
        return replace(links, negatives=nothing) if is_labeled(links) else links
    filled = {t: _filled(of_type, links.edges[t][1]) for t, of_type in links.negatives.items()}
    return replace(links, negatives=filled)


def _filled(negatives: Tensor, destinations: Tensor) -> Tensor:
    """Return the negatives with the destination of the link itself in place of padding."""
    return torch.where(negatives == PADDING, destinations.unsqueeze(1), negatives)


def _scores(
    model: LinkPredictor,
    edge_type: EdgeType,
    rows: FeatureStore,
    links: LinkList,
    sharing: Sharing,
) -> tuple[Tensor, Tensor]:
    decoder, move = model.decoder(edge_type), mover(model)

    def pairs(numbers: slice) -> tuple[Tensor, ...]:
        asked = links.rows(edge_type, torch.arange(numbers.start, numbers.stop))
        assert asked.negatives is not None
        candidates = torch.cat([asked.edges[1].unsqueeze(1), asked.negatives], dim=1)  # own first
        ends = rows_of_pairs(rows, edge_type, asked.edges[0], candidates)
        return ends if asked.relations is None else (*ends, asked.relations.unsqueeze(1))

    source, destination, *_ = pairs(slice(0, 0))
    _, candidates, width = destination.shape
    like, at_once = source.new_empty(0, candidates), CHUNK_NUMBERS // ((candidates + 1) * width)
    stage = Stage(0, edge_type[2], links.counts[edge_type], max(1, at_once), like)

    def scores_of(ends: tuple[Tensor, ...]) -> Tensor:
        source, destination, *relations = map(move, ends)
        return scored(decoder, source, destination, relations[0] if relations else None)

    scores = decoded_rows(stage, pairs, scores_of, sharing)
    return scores[:, 0], scores[:, 1:]


def decoded_rows(
    stage: Stage,
    pairs: Callable[[slice], tuple[Tensor, ...]],
    decode: Callable[[tuple[Tensor, ...]], Tensor],
    sharing: Sharing,
) -> Tensor:
    """Return the rows of a stage, decoded from the rows of its pairs. The ranks share the work."""
    with closing(Memory(sharing.group).open(stage)) as place:
        with closing(sharing.taken(stage, place.missing, pairs, _num_bytes)) as taken:
            for each in taken:
                place.put(each.chunk, decode(each.made).to("cpu", stage.like.dtype))
        return place.finished()


def rows_of_pairs(
    rows: FeatureStore, edge_type: EdgeType, sources: Tensor, candidates: Tensor
) -> tuple[Tensor, Tensor]:
    """Gather rows once: (n, 1, width) of the sources and (n, k, width) of their candidates."""
    ids = {edge_type[0]: sources}
    ids[edge_type[2]] = torch.cat([ids.get(edge_type[2], sources[:0]), candidates.flatten()])
    found = rows.gather({node_type: Rows(of_type, (VALUES,)) for node_type, of_type in ids.items()})
    of_sources, of_candidates = (found[end][VALUES] for end in (edge_type[0], edge_type[2]))
    of_candidates = of_candidates[of_candidates.shape[0] - candidates.numel() :]
    return of_sources[: sources.numel()].unsqueeze(1), of_candidates.view(
        *candidates.shape, of_candidates.shape[-1]
    )


def _num_bytes(pairs: tuple[Tensor, ...]) -> int:
    return sum(rows.nbytes for rows in pairs)
