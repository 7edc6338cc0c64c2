"""Neighborhoods of links: of both endpoints of each link, and of its negatives."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from khop.arguments import column_name
from khop.batch import LinkRows, Sample
from khop.draw import DrawKey, NegativeMode, Negatives, check_negatives
from khop.errors import Unsupported
from khop.graph.needs import Need
from khop.graph.rule import Rule, reads_times
from khop.graph.store import GraphStore
from khop.sampling.links.exclusion import (
    Exclude,
    SpotTarget,
    WithoutEdges,
    check_reverses,
    checked_exclusion,
    excluded_edges,
    kind_of_exclusion,
    reverse_types,
)
from khop.sampling.links.link_negatives import EndRows, LinkNegatives, first_seen, plant_apart, plant_merged
from khop.sampling.links.link_seeds import check_links
from khop.sampling.node_set import CPU, NodeSet, NodeSetPool
from khop.sampling.outputs import Output
from khop.sampling.rules.uniform import UNIFORM
from khop.sampling.sampler import (
    Expansion,
    Fanout,
    KernelSampler,
    NeighborSampler,
    PlantedSeeds,
    SamplerBase,
    Trees,
)
from khop.sampling.seeds import LinkSeeds, SeedKind, SeedLinks, Seeds
from khop.schema import EdgeType, NodeType


@dataclass(frozen=True)
class LinkSettings:
    """Settings of a sampler of links."""

    negatives: Negatives | None  # None: the links have labels
    exclude: Exclude | SpotTarget | None  # links that carry no message in the batch
    relation: str | None = None  # the edge column with the links' relations


@dataclass(frozen=True, eq=False)
class SamplerInputs:
    """Inputs of the `build` of a sampler; `khop.run.contexts.SamplerContext` in a run."""

    graph: GraphStore
    fanouts: Sequence[Fanout]  # of each hop, the hop at the seeds first
    rule: Rule  # of the settings of neighbor sampling, or of the table sampler.rule
    expansion: Expansion
    links: LinkSettings | None  # None: seeds are nodes
    layers: int = 0  # blocks of a batch: the setting model.layers
    seed: int = 0  # of the run
    edge_columns: tuple[str, ...] = ()  # that the model reads; the sampler then gives the ids of edges

    def clusters(self, column: str) -> Mapping[NodeType, Tensor]:
        """Return the cluster of every node, from a column of the graph."""
        raise NotImplementedError


class LinkSampler(SamplerBase):
    """Sampler of the neighborhoods of links, as `NeighborSampler` is for nodes; it also draws negatives.

    The ends of links and negatives become seeds: one seed per node, or with disjoint trees one per end.
    `sample.links` gives the row of each end in the model's output. Samples are a pure function of (graph,
    settings, seeds, key). Any number of threads may share one sampler.

    Args:
        graph: Graph to sample.
        fanouts: Neighbors per hop, as in `NeighborSampler`.
        negatives: Negatives of the links, such as `khop.UniformNegatives()`. None (default): the links
            have labels.
        exclude: Edges of the step's links, on all ranks, to exclude from the message graph: "edge",
            "edge+reverse" or a `khop.SpotTarget`. They are drawn as usual and then removed. Default
            None.
        relation: Edge column with the links' relations: `exclude` then only excludes edges with the same
            relation, and exact negatives are never edges with the same relation. Default None.
        rule: Sampling rule, `Uniform()` by default.
        expansion: "layered" (default) or "subgraph"; see `Expansion`.
        edge_ids: Return the ids of edges, which edge columns need; default False.
        trees: "merged" (default) or "disjoint", as in `NeighborSampler`.
        output: Edges of a subgraph: "directional" (default), "bidirectional" or "induced"; see `Output`.
    Raises:
        ValueError: The fanouts or the rule do not fit the graph, or settings exclude each other.
    Example:
        >>> graph = khop.open_graph("debian")
        >>> links, negatives = khop.Links([[0, 1], [2, 3]]), khop.UniformNegatives()
        >>> sampler = khop.LinkSampler(graph, [5, 5], negatives=negatives, exclude="edge+reverse")
        >>> batch = khop.Loader(sampler, links, batch_size=2).batch(epoch=0, step=0)
        >>> batch.links["package", "linked", "package"].num_links
        2
    """

    def __init__(
        self,
        graph: GraphStore,
        fanouts: Sequence[Fanout],
        *,
        negatives: Negatives | None = None,
        exclude: Exclude | SpotTarget | str | None = None,
        relation: str | None = None,
        rule: Rule = UNIFORM,
        expansion: Expansion = Expansion.LAYERED,
        edge_ids: bool = False,
        trees: Trees = "merged",
        output: Output = Output.DIRECTIONAL,
    ) -> None:
        super().__init__(graph)
        self.negatives = negatives
        if negatives is not None:
            check_negatives(negatives)
        self.exclude = checked_exclusion(exclude)
        if relation is not None:
            column_name(relation)
        self.relation = relation
        self.rule = rule
        self.neighbors = NeighborSampler(  # of the neighborhoods of all ends
            graph,
            fanouts,
            rule=rule,
            expansion=expansion,
            edge_ids=edge_ids,
            trees=trees,
            output=output,
        )
        self._reverses = reverse_types(graph.schema, kind_of_exclusion(self.exclude))
        self._drawing = LinkNegatives(graph, negatives, rule, relation)
        self._node_sets = NodeSetPool(graph, NodeSet, CPU)  # links come from the host

    @property
    def num_layers(self) -> int:
        """Number of blocks in a sample: one per hop."""
        return self.neighbors.num_layers

    @property
    def exact_fanouts(self) -> Sequence[Fanout]:
        """Fanouts of exact evaluation along the edge types that each hop follows."""
        return self.neighbors.exact_fanouts

    @property
    def averaged_types(self) -> frozenset[EdgeType]:
        """Edge types for which samples average a few neighbors, and exact evaluation averages all."""
        return self.neighbors.averaged_types

    @property
    def seed_kinds(self) -> frozenset[SeedKind]:
        """The kinds of seeds that `sample` takes: links, nodes, or both."""
        return frozenset({"nodes", "links"})

    def settings(self) -> Mapping[str, object]:
        """Return the arguments except the graph."""
        return {
            **self.neighbors.settings(),
            "negatives": self.negatives,
            "exclude": self.exclude,
            "relation": self.relation,
        }

    def for_kernels(self) -> KernelSampler:
        """Return this sampler: the links become nodes on the CPU."""
        if self.relation is not None and self.exclude is not None:
            raise Unsupported(
                f"exclude={str(self.exclude)!r} by relation {self.relation!r}: a GPU can only exclude edges "
                "by "
                'their ends; sample on the CPU, topology="host", or give exclude=None'
            )
        return KernelSampler(self.neighbors, self.planted)

    def with_threads(self, threads: int) -> Self:
        """Return a copy that draws each sample with several threads; see `NeighborSampler.with_threads`.

        Args:
            threads: Maximum number of threads.
        """
        sampler = copy(self)
        sampler.neighbors = self.neighbors.with_threads(threads)
        return sampler

    def needs(self, seed_types: Collection[NodeType | EdgeType]) -> tuple[Need, ...]:
        """Return the arrays that draws by the rule need, and negatives of links of these types."""
        of_links = (self._drawing.needs(t) for t in seed_types if isinstance(t, tuple))
        return (*self.neighbors.needs(seed_types), *(need for of_type in of_links for need in of_type))

    def sample(self, seeds: Seeds, key: DrawKey) -> Sample:
        """Sample the neighborhood of links and of seed nodes, if any. Rows of seed nodes come first."""
        if seeds.links is None:
            return self.neighbors.sample(seeds, key)
        planted = self.planted(seeds)
        view = self._without(planted.excluded) if planted.excluded else self.graph
        return replace(self.neighbors.sample(planted.seeds, key, view=view), links=planted.links)

    def planted(self, seeds: Seeds) -> PlantedSeeds:
        """Draw the negatives of links and turn all ends into seed nodes.

        Args:
            seeds: Seeds of a batch.
        """
        links = seeds.links
        if links is None:
            return PlantedSeeds(seeds)
        check_links(self.graph, links)
        check_link_times(links, self.rule)
        check_link_relations(links, self.relation)
        negatives = {t: self._drawing.of(t, links) for t in links.by_type}
        if self.neighbors.is_disjoint:
            planted = plant_apart(seeds, negatives)
        else:
            with self._node_sets.lend() as node_set:
                planted = plant_merged(seeds, negatives, first_seen(node_set))
        if isinstance(self.exclude, SpotTarget):
            links = self.exclude.spotted(self.graph, links)
        kind = kind_of_exclusion(self.exclude)
        check_reverses(kind, links.by_type, self._reverses)
        excluded = excluded_edges(links, kind, self._reverses)
        rows = {
            t: _link_rows(t, links.by_type[t], of_type, self.negatives) for t, of_type in planted.rows.items()
        }
        return PlantedSeeds(planted.seeds, rows, excluded)

    def _without(self, excluded: Mapping[EdgeType, Tensor]) -> WithoutEdges:
        """Return the graph without the edges; by relation if they have relations."""
        relation = self.relation
        columns = {} if relation is None else dict.fromkeys(excluded, relation)
        return WithoutEdges(self.graph, excluded, columns)


def _link_rows(edge_type: EdgeType, links: SeedLinks, rows: EndRows, drawn: Negatives | None) -> LinkRows:
    """Return the rows of links and negatives, as pairs or as triplets."""
    of_ends = [of_end for of_end in (rows.negatives, rows.source_negatives) if of_end is not None]
    own = (rows.source, rows.destination, links.positions)
    if not of_ends or drawn is None or drawn.mode is NegativeMode.TRIPLET:
        further = (rows.source_negatives, links.relations, links.times)
        return LinkRows(*own, links.labels, rows.negatives, 1, *further)
    count = sum(of_end.shape[1] for of_end in of_ends)
    labels = torch.ones(rows.source.numel()) if links.labels is None else links.labels
    if bool((labels == 0).any()):
        raise ValueError(
            f"labels of {edge_type} contain 0, which is the label of negatives: use labels from "
            "1, or leave binary negatives out"
        )
    relations = links.relations
    return LinkRows(
        _paired(rows.source, [_kept(rows.source, rows.negatives), rows.source_negatives]),
        _paired(rows.destination, [rows.negatives, _kept(rows.destination, rows.source_negatives)]),
        links.positions,
        torch.cat([labels, labels.new_zeros(count * labels.shape[0], *labels.shape[1:])]),
        pairs_per_link=1 + count,
        relations=None if relations is None else torch.cat([relations, relations.repeat_interleave(count)]),
        times=links.times,
    )


def _kept(own: Tensor, replaced: Tensor | None) -> Tensor | None:
    """Return the row of each link for each negative that replaces its other end: (links, k)."""
    return None if replaced is None else own.unsqueeze(1).expand_as(replaced)


def _paired(own: Tensor, of_negatives: Sequence[Tensor | None]) -> Tensor:
    """Return the rows of one end of all pairs: of the links, then of the negatives of each link."""
    given = [of_end for of_end in of_negatives if of_end is not None]
    return torch.cat([own, torch.cat(given, dim=1).flatten()])


def check_link_relations(links: LinkSeeds, relation: str | None) -> None:
    """Raise ValueError for links without relations where the sampler goes by relation."""
    for edge_type, of_type in links.by_type.items():
        if relation is not None and of_type.relations is None:
            raise ValueError(
                f"links of {edge_type} have no relations, which relation={relation!r} needs: give "
                "khop.Links(relations=...)"
            )


def check_link_times(links: LinkSeeds, rule: Rule) -> None:
    """Raise ValueError unless all links have time limits exactly if the rule reads them."""
    is_temporal = reads_times(rule)
    for edge_type, of_type in links.by_type.items():
        if is_temporal and of_type.times is None:
            raise ValueError(
                f"links of {edge_type} have no times, which {rule} needs: give khop.Links(times=...)"
            )
        if not is_temporal and of_type.times is not None:
            raise ValueError(
                f"links of {edge_type} have times, but {rule} ignores them: the sample would contain later "
                "edges; use khop.Temporal(column), or leave the times out"
            )


class Neighborhoods:
    """Draws of neighbors per hop: of nodes, or of links and their negatives."""

    @staticmethod
    def build(options: object, context: SamplerInputs) -> NeighborSampler | LinkSampler:
        """Make the sampler of a run."""
        graph, fanouts, links = context.graph, context.fanouts, context.links
        rule, expansion, edge_ids = context.rule, context.expansion, bool(context.edge_columns)
        if links is None:
            return NeighborSampler(graph, fanouts, rule=rule, expansion=expansion, edge_ids=edge_ids)
        return LinkSampler(
            graph,
            fanouts,
            negatives=links.negatives,
            exclude=links.exclude,
            relation=links.relation,
            rule=rule,
            expansion=expansion,
            edge_ids=edge_ids,
        )
