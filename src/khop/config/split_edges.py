"""Split edges of a run's edge type, and the encoder of their ends: for links and for labels of edges."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from torch import nn

from khop.api.open_graph import Graph
from khop.api.split_links import LinkSplit, split_links
from khop.api.time_split import split_links_by_column, split_links_by_time, time_cut_offs
from khop.config.contexts import TaskContext
from khop.config.link_task import link_split
from khop.config.parts import in_flight_of, words_of
from khop.inference.chunks import Progress
from khop.inference.collective_chunks import InferenceWork
from khop.models.sizes import ModelSizes
from khop.runtime.group import this_group
from khop.sampling.fanouts import Fanout, fanouts_by_type, followed_types
from khop.sampling.link_split import LinkColumns
from khop.schema import EdgeType

Hops = tuple[dict[EdgeType, int], ...]


@dataclass(frozen=True, eq=False)
class SplitEdges:
    """The split edges of the run's edge type, with the hops of training and evaluation."""

    whole: Graph  # the graph for inference: every edge of the model's edge types, with held-out edges
    edge_type: EdgeType
    fanouts: Hops  # of training: for the edge types that any hop follows, and for the target type
    measured: Hops  # of evaluation: for the edge types followed in training; empty: all neighbors
    split: LinkSplit
    followed: tuple[EdgeType, ...]  # edge types of the encoder: only the ones of a training hop

    @classmethod
    def of(cls, context: TaskContext, columns: LinkColumns) -> SplitEdges:
        """Split the edges as `links.split` says; equal runs get equal parts."""
        config, graph = context.config, context.graph
        (edge_type,) = (t for t in graph.schema.edge_types if words_of(t) == config.task.target)
        hops, measured = (_hops(graph, of) for of in (config.sampler.fanouts, config.evaluation.fanouts))
        followed = followed_types(graph.schema, hops)
        ends = {edge_type, graph.schema.reverse(edge_type)}
        kept = tuple(t for t in graph.schema.edge_types if t in followed or t in ends)
        graph = graph.only(kept)
        return cls(
            graph,
            edge_type,
            tuple({t: hop[t] for t in kept} for hop in hops),
            tuple({t: hop[t] if t in followed else 0 for t in kept} for hop in measured),
            _split(context, graph, edge_type, columns),
            tuple(t for t in kept if t in followed),
        )

    def model(self, context: TaskContext, around: Callable[[nn.Module], nn.Module]) -> nn.Module:
        """Build the run's model as an encoder of both ends, and put it into another one."""
        table, targets = context.config.model, tuple(dict.fromkeys((self.edge_type[0], self.edge_type[2])))
        embeddings = (table.embedding, table.embedding_update, table.embedded_types, table.unknown)
        sizes = ModelSizes.of(self.split.train, targets, table.column, None, table.hidden, *embeddings)
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


def _split(context: TaskContext, graph: Graph, edge_type: EdgeType, columns: LinkColumns) -> LinkSplit:
    """Split the links as `links.split` says; `auto` takes the split that the graph's import has prepared."""
    links, seed = context.config.links, context.config.training.seed
    negatives, label, time, relation = columns.negatives, columns.label, columns.time, columns.relation
    cut_offs = time_cut_offs(context.graph)
    chosen = link_split(links.split, graph.schema.columns.get(edge_type, {}), cut_offs)
    if chosen == "column":
        return split_links_by_column(
            graph, edge_type, negatives=negatives, label=label, time=time, relation=relation, seed=seed
        )
    if chosen == "time":
        assert cut_offs is not None
        return split_links_by_time(
            graph,
            edge_type,
            cut_offs,
            negatives=negatives,
            label=label,
            time=time,
            relation=relation,
            seed=seed,
        )
    return split_links(
        graph,
        edge_type,
        links.val,
        links.test,
        negatives=negatives,
        label=label,
        time=time,
        relation=relation,
        seed=seed,
    )
