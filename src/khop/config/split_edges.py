"""Split edges of a run's edge types, and the encoder of their ends: for links and for labels of edges."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from torch import nn

from khop.api.open_graph import Graph
from khop.api.split_links import LinkSplit, split_links
from khop.api.time_split import split_links_by_column, split_links_by_time, time_cut_offs
from khop.config.contexts import TaskContext
from khop.config.link_task import links_split, targets_of
from khop.config.parts import in_flight_of
from khop.inference.chunks import Progress
from khop.inference.collective_chunks import InferenceWork
from khop.models.sizes import ModelSizes
from khop.runtime.group import this_group
from khop.sampling.fanouts import Fanout, fanouts_by_type, followed_types
from khop.sampling.link_split import LinkColumns
from khop.schema import EdgeType, NodeType

Hops = tuple[dict[EdgeType, int], ...]


@dataclass(frozen=True, eq=False)
class SplitEdges:
    """The split edges of the run's edge types, with the hops of training and evaluation."""

    whole: Graph  # the graph for inference: every edge of the model's edge types, with held-out edges
    edge_types: tuple[EdgeType, ...]  # the targets
    fanouts: Hops  # of training: for the edge types that any hop follows, and for the target types
    measured: Hops  # of evaluation: for the edge types followed in training; empty: all neighbors
    split: LinkSplit
    followed: tuple[EdgeType, ...]  # edge types of the encoder: only the ones of a training hop

    @classmethod
    def of(cls, context: TaskContext, columns: LinkColumns) -> SplitEdges:
        """Split the edges as `links.split` says; equal runs get equal parts."""
        config, graph = context.config, context.graph
        edge_types = targets_of(config.task.target, graph.schema)
        hops, measured = (_hops(graph, of) for of in (config.sampler.fanouts, config.evaluation.fanouts))
        followed = followed_types(graph.schema, hops)
        ends = {*edge_types, *map(graph.schema.reverse, edge_types)}
        kept = tuple(t for t in graph.schema.edge_types if t in followed or t in ends)
        graph = graph.only(kept)
        split = _split(context, graph, edge_types, columns)
        split = replace(split, train=context.placed(split.train))
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
        """Build the run's model as an encoder of both ends, and put it into another one."""
        table = context.config.model
        embeddings = (table.embedding, table.embedding_update, table.embedded_types, table.unknown)
        sizes = ModelSizes.of(self.split.train, self.ends, table.column, None, table.hidden, *embeddings)
        # Evaluation follows the edge types that the model has learned.
        sizes = replace(sizes, edge_types=self.followed)
        return replace(context, graph=self.split.train).model(sizes, around)


def work_of(context: TaskContext, graph: Graph, progress: Progress) -> InferenceWork:
    """Return the sizes of chunks and the sharing of an evaluation."""
    config = context.config
    in_flight, size = in_flight_of(config), config.evaluation.batch_size
    edges = config.evaluation.batch_edges
    return InferenceWork(size, progress, in_flight, this_group(), graph.lanes, edges)


def _hops(graph: Graph, fanouts: Sequence[Fanout]) -> Hops:
    return fanouts_by_type(graph.schema, fanouts)


def _split(
    context: TaskContext, graph: Graph, edge_types: Sequence[EdgeType], columns: LinkColumns
) -> LinkSplit:
    """Split the links as `links.split` says; `auto` takes the split that the graph's import has prepared."""
    links, seed = context.config.links, context.config.training.seed
    negatives, label, time, relation = columns.negatives, columns.label, columns.time, columns.relation
    cut_offs = time_cut_offs(context.graph)
    chosen = links_split(links.split, {t: graph.schema.columns.get(t, {}) for t in edge_types}, cut_offs)
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
