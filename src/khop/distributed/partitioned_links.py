"""A list of links partitioned into ranges, one per rank."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from khop.distributed.partition_owners import PartitionOwners
from khop.distributed.partitioned_features import PartitionedFeatures
from khop.exchange.lanes import Lanes
from khop.exchange.moved_rows import summed
from khop.exchange.peers import Message
from khop.exchange.row_wire import stored_dtype
from khop.features.store import FeatureStore, Rows
from khop.features.table import ColumnPieces
from khop.sampling.link_digest import links_digest, told_apart
from khop.sampling.link_seeds import Links
from khop.sampling.listed import ListedLinks
from khop.sampling.sampler import SeedLinks, Seeds
from khop.sampling.seeds import StepShare, digest_of, numbers_by_type
from khop.schema import ColumnSpec, EdgeType, NodeType, Type

SUMMING = Message("comparing links", "id")
ENDS = "ends"  # column of link ends; `facts` are the other columns


@dataclass(frozen=True, eq=False)
class PartitionedLinks:
    """Links partitioned across ranks. Reads are collective: the links of a step are fetched with the step.

    A batch has the same bits as a batch of `Links` in this order.
    """

    counts: Mapping[EdgeType, int]  # number of links on all ranks, by type
    table: FeatureStore  # ends and facts, by type and link number
    digests: Mapping[EdgeType, int]  # see `links_digest`

    @property
    def facts(self) -> tuple[str, ...]:
        """Names of the given columns besides the ends, as in `Links`."""
        return tuple(name for name in next(iter(self.table.specs.values())) if name != ENDS)

    @property
    def edges(self) -> Mapping[EdgeType, Tensor]:
        """Not available, raises ValueError: no rank has one tensor of all links."""
        return in_this_process(self, "the ends of all links").edges

    def rows(self, edge_type: EdgeType, numbers: Tensor) -> SeedLinks:
        """Return the links of a type with these numbers, as one batch. Collective."""
        links = self._fetched({edge_type: numbers})
        return replace(links.rows(edge_type, torch.arange(numbers.numel())), positions=numbers)

    def at_hand(self, step: StepShare) -> tuple[Links, StepShare]:
        """Return the links of a step, and the step renumbered to them, on every rank. Collective."""
        order, wanted, first = torch.empty_like(step.order), dict[EdgeType, Tensor](), 0
        for edge_type, numbers, positions in numbers_by_type(self.counts, step.of_all_ranks):
            wanted[edge_type] = numbers
            order[positions - step.start] = torch.arange(first, first + numbers.numel())
            first += numbers.numel()
        return self._fetched(wanted), replace(step, order=order)

    def taken(self, share: StepShare) -> Seeds:
        """Return the links of a rank's share by type, in global order. Collective."""
        links, step = self.at_hand(share)
        return links.taken(step)

    def affinity_nodes(self, share: StepShare) -> Iterator[tuple[NodeType, Tensor, Tensor]]:
        """Yield the sources of the links and the positions of the links, by edge type. Collective."""
        links, step = self.at_hand(share)
        return links.affinity_nodes(step)

    def digest(self) -> str:
        """Return the hash of types, ends and columns of the links."""
        return digest_of(self._hash_into)

    def _hash_into(self, update: Callable[[bytes | memoryview], None]) -> None:
        for edge_type, count in self.counts.items():
            specs = self.table.specs[edge_type]
            facts = {name: (stored_dtype(specs[name]), specs[name].shape) for name in self.facts}
            update(told_apart(edge_type, count, facts))
            update(self.digests[edge_type].to_bytes(8, "big"))

    def _fetched(self, numbers: Mapping[EdgeType, Tensor]) -> Links:
        """Fetch the links with these numbers to this process."""
        columns = (ENDS, *self.facts)
        found = self.table.gather({t: Rows(of_type, columns) for t, of_type in numbers.items()})
        facts = {name: {t: found[t][name] for t in numbers} for name in self.facts}
        return Links({t: found[t][ENDS].T.contiguous() for t in numbers}, **facts)


def partitioned_links(
    counts: Mapping[EdgeType, int],
    held: Mapping[EdgeType, Mapping[str, Tensor]],
    lanes: Lanes,
) -> PartitionedLinks:
    """Build the links of all ranks; `held` are this rank's columns by name, for its `range`. Collective."""
    ranks, rank = lanes.world_size, lanes.group.rank
    offsets: dict[Type, list[int]] = {t: rank_bounds_of(count, ranks) for t, count in counts.items()}
    specs: dict[Type, dict[str, ColumnSpec]] = {
        t: {
            name: ColumnSpec(str(fact.dtype).removeprefix("torch."), tuple(fact.shape[1:]))
            for name, fact in of_type.items()
        }
        for t, of_type in held.items()
    }
    pieces: dict[Type, ColumnPieces] = {
        t: {name: [fact] for name, fact in of_type.items()} for t, of_type in held.items()
    }
    table = PartitionedFeatures(pieces, specs, offsets, PartitionOwners(ranks, rank, ranks), lanes)
    sums = [links_digest(offsets[t][rank], list(of_type.values())) for t, of_type in held.items()]
    words = torch.tensor([[word & 0xFFFFFFFF, word >> 32] for word in sums])
    totals = summed(lanes.peers, words, SUMMING).tolist()
    digests = {t: low + (high << 32) & (1 << 64) - 1 for t, (low, high) in zip(held, totals, strict=True)}
    return PartitionedLinks(counts, table, digests)


def in_this_process(links: Links | PartitionedLinks | ListedLinks, what: str) -> Links:
    """Return the links if this process has all of them.

    ValueError otherwise; `what` names the operation that needs them.
    """
    if isinstance(links, PartitionedLinks):
        raise ValueError(
            f"{what}: ranks that hold edges in parts hold links in parts, too; ask for some by "
            'links.rows(edge_type, numbers), or open the graph with placement="features" or in one process'
        )
    if isinstance(links, ListedLinks):
        raise ValueError(
            f"{what}: the links are on servers; ask for some by links.rows(edge_type, numbers), or open the "
            "graph's folder with khop.open_graph"
        )
    return links


def rank_bounds_of(count: int, ranks: int) -> list[int]:
    """Return (ranks + 1) numbers: the first link of each rank among `count`, and the end of the last."""
    return [count * rank // ranks for rank in range(ranks + 1)]
