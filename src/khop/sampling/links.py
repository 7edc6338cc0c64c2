"""Neighborhoods of links: of both ends of every link and of its negatives, by the shared hop loop."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from copy import copy
from dataclasses import replace
from typing import Self

import torch
from torch import Tensor

from khop.batch import LinkRows, Sample
from khop.draw import (
    DrawKey,
    GivenNegatives,
    NegativeMode,
    Negatives,
    Positives,
    check_negatives,
)
from khop.graph.needs import Need, NegativeNeed
from khop.graph.store import GraphStore
from khop.rules.rule import Rule, reads_times, time_column
from khop.rules.uniform import Uniform
from khop.sampling.exclusion import Exclude, WithoutEdges, checked_exclude, excluded_edges, reverse_types
from khop.sampling.fanouts import Fanout
from khop.sampling.link_ends import EndRows, first_seen, plant_apart, plant_merged
from khop.sampling.link_seeds import check_links
from khop.sampling.neighbor import Expansion, NeighborSampler, Trees
from khop.sampling.node_set import CPU, NodeSet, NodeSetPool, check_ids
from khop.sampling.outputs import Output
from khop.sampling.sampler import (
    KernelSampler,
    LinkSeeds,
    PlantedSeeds,
    SamplerBase,
    SeedKind,
    SeedLinks,
    Seeds,
)
from khop.schema import EdgeType, NodeType


class LinkSampler(SamplerBase):
    """Sampler of the neighborhoods of links, as `NeighborSampler` is for nodes; it also draws negatives.

    The ends of links and negatives become seeds: one seed per node, or with disjoint trees one per end.
    `sample.links` gives the row of each end in the model's output. With `exclude`, the edges that
    correspond to links of the step, on all ranks, carry no message; see `WithoutEdges` for the effect on the
    draw. A pure function of (graph, settings, seeds, key). Any number of threads may share one sampler.
    """

    def __init__(
        self,
        graph: GraphStore,
        fanouts: Sequence[Fanout],
        *,
        negatives: Negatives | None = None,
        exclude: Exclude | str | None = None,
        rule: Rule = Uniform(),
        expansion: Expansion = Expansion.LAYERED,
        edge_ids: bool = False,
        trees: Trees = "merged",
        output: Output = Output.DIRECTIONAL,
    ) -> None:
        super().__init__(graph)
        self.negatives = negatives
        if negatives is not None:
            check_negatives(negatives)
        self.exclude = None if exclude is None else checked_exclude(exclude)
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
        self._reverses = reverse_types(graph.schema, self.exclude)
        self._node_sets = NodeSetPool(graph, NodeSet, CPU)  # links come from the host

    @property
    def num_layers(self) -> int:
        """Number of blocks in a sample: one per hop."""
        return self.neighbors.num_layers

    @property
    def seed_kinds(self) -> frozenset[SeedKind]:
        """The kinds of seeds that `sample` takes: links, and nodes beside them or alone."""
        return frozenset({"nodes", "links"})

    def settings(self) -> Mapping[str, object]:
        """Return the arguments beside the graph."""
        return {**self.neighbors.settings(), "negatives": self.negatives, "exclude": self.exclude}

    def for_kernels(self) -> KernelSampler:
        """Return this sampler: the links become nodes on the CPU."""
        return KernelSampler(self.neighbors, self.planted)

    def with_threads(self, threads: int) -> Self:
        """Return a copy that draws each sample with up to `threads` threads: the same bits, sooner.

        Use it when one sample is waited for; see `NeighborSampler.with_threads`.
        """
        sampler = copy(self)
        sampler.neighbors = self.neighbors.with_threads(threads)
        return sampler

    def needs(self, seed_types: Collection[NodeType | EdgeType]) -> tuple[Need, ...]:
        """Return the arrays that draws by the rule need, and negatives of links of these types."""
        negatives, of_rule = self.negatives, self.neighbors.needs(seed_types)
        if negatives is None or isinstance(negatives, GivenNegatives):
            return of_rule
        links = [t for t in seed_types if isinstance(t, tuple)]
        return (*of_rule, *(NegativeNeed(t, negatives, time_column(self.rule, t)) for t in links))

    def sample(self, seeds: Seeds, key: DrawKey) -> Sample:
        """Sample the neighborhood of links and of seed nodes, if any. Rows of seed nodes come first."""
        if seeds.links is None:
            return self.neighbors.sample(seeds, key)
        planted = self.planted(seeds)
        view = WithoutEdges(self.graph, planted.excluded) if planted.excluded else self.graph
        return replace(self.neighbors.sample(planted.seeds, key, view=view), links=planted.links)

    def planted(self, seeds: Seeds) -> PlantedSeeds:
        """Draw the negatives of links and turn all ends into seed nodes."""
        links = seeds.links
        if links is None:
            return PlantedSeeds(seeds)
        check_links(self.graph, links)
        check_link_times(links, self.rule)
        negatives = {t: self._negatives_of(t, links) for t in links.by_type}
        if self.neighbors.is_disjoint:
            planted = plant_apart(seeds, negatives)
        else:
            with self._node_sets.lend() as node_set:
                planted = plant_merged(seeds, negatives, first_seen(node_set))
        excluded = excluded_edges(links, self.exclude, self._reverses)
        rows = {
            t: _link_rows(t, links.by_type[t], of_type, self.negatives) for t, of_type in planted.rows.items()
        }
        return PlantedSeeds(planted.seeds, rows, excluded)

    def _negatives_of(self, edge_type: EdgeType, links: LinkSeeds) -> Tensor | None:
        """Return int64 (links, k), global ids."""
        of_type, negatives = links.by_type[edge_type], self.negatives
        if isinstance(negatives, GivenNegatives):
            if of_type.negatives is None:
                raise ValueError(
                    f"links of {edge_type} have no negatives, which {negatives} takes: "
                    "give khop.Links(negatives=...)"
                )
            count = self.graph.num_nodes(edge_type[2])
            check_ids(f"negatives of {edge_type}", of_type.negatives.flatten(), count)
            return of_type.negatives
        if of_type.negatives is not None:
            raise ValueError(
                f"links of {edge_type} have negatives, which negatives={negatives} would not "
                "use: use negatives=khop.GivenNegatives(), or leave them out of the links"
            )
        if negatives is None:
            return None
        column = time_column(self.rule, edge_type)
        # Links with the same position get the same draw.
        positions = of_type.positions // negatives.group if negatives.group > 1 else of_type.positions
        wanted = Positives(of_type.edges[0], positions, of_type.times, column)
        return self.graph.sample_negatives(edge_type, negatives, wanted, links.negative_key)


def _link_rows(edge_type: EdgeType, links: SeedLinks, rows: EndRows, drawn: Negatives | None) -> LinkRows:
    negatives = rows.negatives
    if negatives is None or drawn is None or drawn.mode is NegativeMode.TRIPLET:
        return LinkRows(rows.source, rows.destination, links.positions, links.labels, negatives)
    count = negatives.shape[1]
    labels = torch.ones(rows.source.numel()) if links.labels is None else links.labels
    if bool((labels == 0).any()):
        raise ValueError(
            f"labels of {edge_type} hold 0, which is what negatives are labeled: use labels from "
            "1 on, or no binary negatives"
        )
    return LinkRows(
        torch.cat([rows.source, rows.source.repeat_interleave(count)]),
        torch.cat([rows.destination, negatives.flatten()]),
        links.positions,
        torch.cat([labels, labels.new_zeros(negatives.numel(), *labels.shape[1:])]),
        pairs_per_link=1 + count,
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
