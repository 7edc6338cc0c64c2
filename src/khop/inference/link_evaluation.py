"""Evaluation of held-out links, and outputs for labeled links and given pairs.

Exact evaluation computes the rows of all nodes first, then scores pairs in chunks. Sampled evaluation works
for any encoder and for links with times. The popularity of a destination, its number of edges, is the
baseline.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor, nn

from khop.arguments import graph_of, instance_of, seed_number
from khop.batch import Batch, Change
from khop.distributed.exchange.lanes import Lanes
from khop.distributed.processes.group import ALONE, Group
from khop.draw import DrawKey, DrawnNegatives, Positives, Purpose, check_drawn
from khop.graph.features.store import FeatureStore, Rows
from khop.graph.rule import Rule
from khop.graph.store import GraphStore
from khop.inference.chunks import (
    ONE_CHUNK,
    Chunk,
    ChunkMeter,
    DynamicChunks,
    InferenceWork,
    Progress,
    Sharing,
    check_equal_chunks,
    drawn,
    evaluating,
    sharing_of,
    unwatched,
)
from khop.inference.evaluation import EdgeOutputs, split_scores
from khop.inference.node_outputs import ExactDraws, Layers
from khop.inference.stages import CHUNK_EDGES, VALUES, ChunkLimits, MemoryStore, Stage, row_table
from khop.loading.columns import ColumnChoice
from khop.loading.ordered_map import FEW_IN_FLIGHT, InFlight
from khop.models.link_predictor import EdgePredictor, LinkPredictor, scored
from khop.models.node_embedding import gathered
from khop.sampling.links.link_seeds import PADDING, LinkList, Links, check_links
from khop.sampling.rules.uniform import UNIFORM
from khop.sampling.sampler import Fanout, Sampler
from khop.sampling.seeds import LinkSeeds, SeedLinks, Seeds, check_ids
from khop.schema import EdgeType, NodeType
from khop.training.edge_tasks import (
    PAIR_METRICS,
    EdgeObjective,
    LinkMetric,
    check_link_metric,
    is_pair_metric,
    link_metric,
    pair_metric,
)
from khop.training.steps import mover

Scores = dict[EdgeType, tuple[Tensor, Tensor]]  # scores of links (n), scores of their negatives (n, k)
CHUNK_NUMBERS = 1 << 22  # values of both ends' rows that are decoded per chunk


def node_rows(
    encoder: nn.Module,
    graph: GraphStore,
    features: FeatureStore,
    node_types: Sequence[NodeType],
    *,
    rule: Rule = UNIFORM,
    fanouts: Sequence[Fanout] | None = None,
    chunk_size: int = 8192,
    chunk_edges: int = CHUNK_EDGES,
    progress: Progress = unwatched,
    in_flight: InFlight = FEW_IN_FLIGHT,
    group: Group = ALONE,
    lanes: Lanes | None = None,
) -> dict[NodeType, Tensor]:
    """Compute an encoder's rows for all nodes of some types: exact, layer by layer over all neighbors.

    Each layer is computed once for all types.

    Args:
        encoder: Encoder that exposes its layers (`khop.models.Layered`).
        graph: Edges.
        features: Columns.
        node_types: Node types.
        rule: Rule of training, as for `khop.layerwise_inference`; default `Uniform()`.
        fanouts: Fanouts of training, for rules that need them; default None.
        chunk_size: Nodes per chunk, default 8192.
        chunk_edges: Maximum edges of a chunk with several nodes, default 1048576.
        progress: Function called with the numbers of finished rows and of all rows; by default none.
        in_flight: Threads and memory of the batches; default: 2 threads and at most 1 GiB.
        group: Ranks that share the work; by default this process.
        lanes: Lanes of a partitioned graph; default None.
    Returns:
        Rows (nodes, width) by node type, on the CPU.
    Raises:
        ValueError: The encoder does not expose its layers, or does not fit the graph.
    Example:
        >>> nodes = {"item": khop.NodeTable(columns={"x": torch.rand(4, 8)})}
        >>> edges = {"item to item": khop.EdgeTable(torch.arange(4), torch.arange(4).flip(0))}
        >>> graph = khop.open_graph(khop.write_graph(tmp / "graph", nodes, edges))
        >>> encoder = khop.models.SAGE.for_graph(graph, hidden=16, target=["item"], outputs=16)
        >>> khop.node_rows(encoder, graph, graph.features, ["item"])["item"].shape
        torch.Size([4, 16])
    """
    chunks = ChunkLimits(chunk_size, chunk_edges)
    sharing, draws = sharing_of(graph, features, lanes, group, in_flight), ExactDraws(rule, fanouts)
    wanted = dict.fromkeys(node_types)
    layers = Layers.of(encoder, graph, features, wanted, chunks, draws=draws, group=sharing.group)
    return layers.computed(sharing, sharing.layer_store(), progress, last=MemoryStore(sharing.group))


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
    sharing = work.sharing(graph, features)
    layers = Layers.of(encoder, graph, features, ends, chunks, draws=draws, group=sharing.group)
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
        for edge_type, negatives in (links.negatives or {}).items():
            is_given = negatives != PADDING
            check_ids(f"negatives of {edge_type}", negatives[is_given], graph.num_nodes(edge_type[2]))
            alone = (~is_given.any(1)).nonzero()
            if alone.numel():
                reason = "has only padding" if negatives.shape[1] else "has no negative"
                raise ValueError(
                    f"link {int(alone[0])} of {' '.join(edge_type)} {reason}; leave it out or give a negative"
                )


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
    """Draw negatives for links; the same seed draws the same negatives.

    Args:
        graph: Graph from which negatives are drawn; exact negatives are never edges of it. Give the whole
            graph with the held-out links, so that held-out links are not drawn as negatives.
        links: The links.
        negatives: Distribution of the negatives, such as `khop.UniformNegatives(100)`.
        seed: Seed of the draws, default 0.
        time: For links with times, the column with the times from which destinations exist. Default None.
    Returns:
        The same links with negatives.
    Raises:
        ValueError: The links do not fit the graph, or have no times for `time`.
    Example:
        >>> graph = khop.open_graph("debian")
        >>> links = khop.with_negatives(graph, khop.Links([[0, 1], [2, 3]]), khop.UniformNegatives(5))
        >>> links.negatives["package", "linked", "package"].shape
        torch.Size([2, 5])
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
    given = links if isinstance(links, Links) else None
    for edge_type, (of_links, negatives) in scores.items():
        if of_links.numel() == 0:
            raise ValueError(f"links of {edge_type}: there are none to evaluate; leave the edge type out")
        if negatives.shape[1] == 0 and not (given is not None and is_labeled(given)):
            raise ValueError(
                f"link 0 of {' '.join(edge_type)} has no negative; give each link one or more negatives"
            )

    def of_type(metric: LinkMetric, edge_type: EdgeType) -> float:
        of_links, negatives = scores[edge_type]
        if given is not None and given.negatives is not None:
            return link_metric(metric, of_links, negatives, given.negatives[edge_type] != PADDING)
        if given is not None and given.labels is not None:
            return pair_metric(metric, of_links, given.labels[edge_type])
        return link_metric(metric, of_links, negatives)

    return {metric: sum(of_type(metric, t) for t in scores) / len(scores) for metric in metrics}


def check_metrics(metrics: Sequence[LinkMetric]) -> None:
    """Raise ValueError unless all names are link metrics."""
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
        if not is_pair_metric(metric):
            raise ValueError(
                f"metric {metric!r}: ranks each link among its negatives, but these links only have labels; "
                f"give {', '.join(PAIR_METRICS)} or hits@K, or khop.Links(..., negatives=...)"
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


def with_other_sources(links: Links, sources: Tensor) -> Links:
    """Return the pairs of other sources (n, k), padded with -1, and the destinations of n links of a type.

    The pairs have the label 0. Padding becomes the source of the link.
    """
    ((edge_type, edges),), count = links.edges.items(), sources.shape[1]
    filled = torch.where(sources == PADDING, edges[0].unsqueeze(1), sources).flatten()
    facts = {"times": links.times, "relations": links.relations}
    repeated = {
        name: {edge_type: of[edge_type].repeat_interleave(count)}
        for name, of in facts.items()
        if of is not None
    }
    pairs = torch.stack([filled, edges[1].repeat_interleave(count)])
    return Links({edge_type: pairs}, labels={edge_type: torch.zeros(pairs.shape[1])}, **repeated)


def _filled(negatives: Tensor, destinations: Tensor) -> Tensor:
    """Return the negatives with padding replaced by the destination of the link itself."""
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
    check_equal_chunks(sharing.group, stage)
    with closing(MemoryStore(sharing.group).open(stage)) as place:
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


def sampled_link_scores(
    model: LinkPredictor,
    sampler: Sampler,
    features: FeatureStore,
    links: LinkList,
    columns: ColumnChoice,
    work: InferenceWork,
    seed: int = 0,
) -> Scores:
    """Score links and their negatives over sampled neighborhoods: (n) and (n, k) per edge type.

    `sampler` uses the negatives given with the links, as triplets. One key draws for all chunks. With the
    layered expansion a score is therefore independent of its link's chunk, and two evaluations with the same
    seed differ only by the model. The ranks of a group share the work.
    """
    check_has_negatives(links)
    key = DrawKey.of(seed, Purpose.EVALUATION)
    sharing = work.sharing(sampler.graph, features)
    meter = ChunkMeter(work.progress, sum(links.counts.values()), sharing)
    found: Scores = {}
    first = 0
    with evaluating(model), gathered(model):
        for edge_type, count in links.counts.items():
            chunks = LinkChunks(sampler, features, columns, key, mover(model), links, edge_type, first)

            def scores_of(batch: Batch, of: EdgeType = edge_type) -> Tensor:
                scores = model(batch)[of]
                assert scores.negatives is not None
                return torch.cat([scores.pairs.unsqueeze(1), scores.negatives], dim=1)

            one = chunks.made(edge_type[2], torch.arange(min(1, count))).map(chunks.move)
            stage = Stage(0, edge_type[2], count, work.chunk_size, scores_of(one).cpu()[:0])
            scores = meter.rows(stage, MemoryStore(sharing.group), chunks, scores_of)
            found[edge_type] = (scores[:, 0], scores[:, 1:])
            first += count
    return found


@dataclass(frozen=True)
class LinkChunks:
    """Maker of batches for links of one edge type."""

    sampler: Sampler
    features: FeatureStore
    columns: ColumnChoice
    key: DrawKey
    move: Change
    links: LinkList
    edge_type: EdgeType
    first: int  # position of the type's first link among the links of all types
    works_ahead = True

    def with_threads(self, threads: int) -> LinkChunks:
        """Return a source that draws the same batches with several threads each."""
        return replace(self, sampler=self.sampler.with_threads(threads)) if threads > 1 else self

    def made(
        self, node_type: NodeType, nodes: Tensor, times: Tensor | None = None, chunk: Chunk = ONE_CHUNK
    ) -> Batch:
        """Make the batch of the links with these numbers."""
        found = self.links.rows(self.edge_type, nodes)
        asked = replace(found, positions=self.first + nodes, labels=None)
        seeds = Seeds({}, {}, links=LinkSeeds({self.edge_type: asked}, self.key))
        sample, columns, seed_columns = drawn(
            self.sampler, self.features, self.columns, seeds, self.key, chunk
        )
        planted = {t: sample.nodes[t][index] for t, index in sample.seed_index.items()}
        return Batch(sample, planted, columns, seed_columns, 0, 0, nodes.numel())


def pair_scores(
    model: LinkPredictor,
    graph: GraphStore,
    features: FeatureStore,
    edge_type: EdgeType,
    pairs: tuple[Tensor, Tensor],
    work: InferenceWork,
    draws: ExactDraws,
) -> Tensor:
    """Return (n): the scores of pairs, which are the sources and the destinations, int64 (n) each.

    The rows of these nodes alone are computed, layer by layer by the rule of training.
    ValueError if the encoder does not expose its layers.
    """
    ends = edge_type[0], edge_type[2]
    wanted: dict[NodeType, Tensor] = {}
    for node_type, nodes in zip(ends, pairs, strict=True):
        wanted[node_type] = torch.cat([wanted.get(node_type, nodes[:0]), nodes]).unique()
    limits = ChunkLimits(work.chunk_size, work.chunk_edges)
    sharing = work.sharing(graph, features)
    layers = Layers.of(model.encoder, graph, features, wanted, limits, draws=draws, group=sharing.group)
    rows = layers.computed(sharing, sharing.layer_store(), work.progress, last=MemoryStore(sharing.group))
    move = mover(model)
    found = [
        move(rows[t][torch.searchsorted(wanted[t], nodes)]) for t, nodes in zip(ends, pairs, strict=True)
    ]
    with torch.no_grad(), evaluating(model):
        return model.decoder(edge_type)(found[0], found[1]).cpu()


class _OfDestination(nn.Module):
    """The decoder: one of the numbers in the row of the destination, in its own dtype."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number

    def forward(self, source: Tensor, destination: Tensor) -> Tensor:
        """Return (...): a score per pair, from (..., numbers)."""
        shape = torch.broadcast_shapes(source.shape, destination.shape)
        return destination.expand(shape)[..., self.number]


def popularity_scores(
    degrees: Mapping[EdgeType, Tensor], counts: Mapping[NodeType, int], links: LinkList, sharing: Sharing
) -> Scores:
    """Score links and their negatives by `degrees`, int64 (destinations) by type: int64 (n) and (n, k).

    `counts` has the number of nodes of each type. Whole numbers, so that equal destinations tie. The ranks of
    a group share the work.
    """
    ends = dict.fromkeys(end for edge_type in degrees for end in (edge_type[0], edge_type[2]))
    rows = {node_type: torch.zeros(counts[node_type], len(degrees), dtype=torch.int64) for node_type in ends}
    for number, (edge_type, of_type) in enumerate(degrees.items()):
        rows[edge_type[2]][:, number] = of_type
    decoders = {edge_type: _OfDestination(number) for number, edge_type in enumerate(degrees)}
    return link_scores(LinkPredictor(nn.Identity(), decoders), row_table(rows), links, sharing)


_LINKS_AT_ONCE = 1 << 18


def exact_edge_outputs(
    model: EdgePredictor,
    graph: GraphStore,
    features: FeatureStore,
    links: LinkList,
    work: InferenceWork,
    draws: ExactDraws,
) -> dict[EdgeType, Tensor]:
    """Compute exact outputs, layer by layer by the rule of training: (links, outputs) per edge type.

    The encoder first computes a row for every node. The ranks of a group share the work.
    """
    rows, sharing = end_rows(model.encoder, graph, features, links, work, draws)
    move, found = mover(model), dict[EdgeType, Tensor]()
    with evaluating(model):
        for edge_type, count in links.counts.items():
            head = model.head(edge_type)
            edges = all_links(links, edge_type)[0]

            def pairs(
                numbers: slice, edges: Tensor = edges, of: EdgeType = edge_type
            ) -> tuple[Tensor, Tensor]:
                return rows_of_pairs(rows, of, edges[0, numbers], edges[1, numbers].unsqueeze(1))

            def outputs(ends: tuple[Tensor, ...], head: nn.Module = head) -> Tensor:
                made: Tensor = head(*(move(end).squeeze(1) for end in ends))
                return made

            none = pairs(slice(0, 0))
            at_once = max(1, CHUNK_NUMBERS // (2 * none[0].shape[2]))
            stage = Stage(0, edge_type[2], count, at_once, outputs(none).cpu())
            found[edge_type] = decoded_rows(stage, pairs, outputs, sharing)
    return found


def sampled_edge_outputs(
    model: EdgePredictor,
    sampler: Sampler,
    features: FeatureStore,
    links: LinkList,
    columns: ColumnChoice,
    work: InferenceWork,
    seed: int = 0,
) -> dict[EdgeType, Tensor]:
    """Compute outputs over sampled neighborhoods: (links, outputs) per edge type.

    `sampler` draws no negatives. One key draws for all chunks, so with the layered expansion an output does
    not depend on its link's chunk. The ranks of a group share the work.
    """
    key, found, first = DrawKey.of(seed, Purpose.EVALUATION), dict[EdgeType, Tensor](), 0
    sharing = work.sharing(sampler.graph, features)
    meter = ChunkMeter(work.progress, sum(links.counts.values()), sharing)
    with evaluating(model), gathered(model):
        for edge_type, count in links.counts.items():
            chunks = LinkChunks(sampler, features, columns, key, mover(model), links, edge_type, first)

            def outputs_of(batch: Batch, of: EdgeType = edge_type) -> Tensor:
                rows: Tensor = model(batch)[of]
                return rows

            one = chunks.made(edge_type[2], torch.arange(min(1, count))).map(chunks.move)
            stage = Stage(0, edge_type[2], count, work.chunk_size, outputs_of(one).cpu()[:0])
            found[edge_type] = meter.rows(stage, MemoryStore(sharing.group), chunks, outputs_of)
            first += count
    return found


def edge_scores(
    task: EdgeObjective, splits: Mapping[str, EdgeOutputs], extra_metrics: Sequence[str] = ()
) -> dict[str, float]:
    """Compute the task's metric for each split. Metrics in `extra_metrics` are added, as "val/f1-macro"."""
    found: dict[str, float] = {}
    for split, of_split in splits.items():
        given = of_split.outputs, of_split.labels, of_split.edges
        found |= split_scores(split, task.metric, extra_metrics, partial(task.score, *given))
    return found


def labeled_outputs(links: LinkList, edge_type: EdgeType, outputs: Tensor) -> EdgeOutputs:
    """Join outputs with the ends and labels of all links of a type. Collective where ranks hold the links."""
    return EdgeOutputs(*all_links(links, edge_type), outputs)


def all_links(links: LinkList, edge_type: EdgeType) -> tuple[Tensor, Tensor]:
    """Return int64 (2, links), the ends of all links of a type, and (links, ...), their labels.

    Collective where ranks hold the links; servers send some at a time.
    """
    pieces = _pieces(links, edge_type)
    labels = [piece.labels for piece in pieces if piece.labels is not None]
    assert len(labels) == len(pieces), "the split has labels"
    return torch.cat([piece.edges for piece in pieces], 1), torch.cat(labels)


def ends_of_links(links: LinkList, edge_type: EdgeType) -> Tensor:
    """Return int64 (2, links), the ends of all links of a type. Collective where ranks hold the links."""
    return torch.cat([piece.edges for piece in _pieces(links, edge_type)], 1)


def triples_of_links(links: LinkList, edge_type: EdgeType) -> Tensor:
    """Return int64 (3, links): source, relation and destination of all links of a type. Collective likewise.

    Links without relations have relation 0.
    """
    found = []
    for piece in _pieces(links, edge_type):
        relations = torch.zeros_like(piece.edges[0]) if piece.relations is None else piece.relations
        found.append(torch.stack([piece.edges[0], relations, piece.edges[1]]))
    return torch.cat(found, 1)


def queries_of_links(links: LinkList, edge_type: EdgeType, num_sources: int) -> Tensor:
    """Return int64 (2, links): queries, which are source + num_sources * date, and destinations.

    Dates number the times of the links; those without times have date 0. Collective likewise.
    """
    pieces = _pieces(links, edge_type)
    sources, destinations = torch.cat([piece.edges for piece in pieces], 1)
    times = [piece.times for piece in pieces if piece.times is not None]
    if not times:
        return torch.stack([sources, destinations])
    dates = torch.cat(times).unique(return_inverse=True)[1]
    return torch.stack([sources + num_sources * dates, destinations])


def _pieces(links: LinkList, edge_type: EdgeType) -> list[SeedLinks]:
    return [
        links.rows(edge_type, numbers)
        for numbers in torch.arange(links.counts[edge_type]).split(_LINKS_AT_ONCE)
    ]


def check_labeled(links: LinkList, edge_type: EdgeType) -> None:
    """Raise ValueError unless there are links of the edge type, and they have labels."""
    if "labels" not in links.facts:
        raise ValueError(
            "links without labels cannot be evaluated: give khop.Links(..., labels=...), or split the edges "
            "with khop.split_links(label=...)"
        )
    if not links.counts.get(edge_type):
        raise ValueError(f"links of {edge_type}: there are none to evaluate, only of {list(links.counts)}")
