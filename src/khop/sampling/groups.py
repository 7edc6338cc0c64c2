"""Groups of seeds: each is one subgraph, dealt to one rank. A step's loss is the mean over its groups."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from khop.batch import LossWeights, Sample
from khop.sampling.group_subgraph import Members
from khop.sampling.sampler import GROUPS, GroupShare, Sampler, Seeds
from khop.sampling.seeds import NodeSeeds, SeedList, StepShare, array_bytes, digest_of
from khop.schema import EdgeType, NodeType


@dataclass(frozen=True, eq=False)
class GroupSeeds:
    """The elements of an epoch, such as clusters or seed nodes. `size` of them in its order are a group."""

    kind: str  # of the elements, in messages
    count: int  # of elements
    size: int  # elements per group; the last group of an epoch may have fewer
    targets: Mapping[NodeType, Tensor]  # int64 (nodes), global ids of the nodes with a loss, by type
    settings: str = ""  # of the sampler, if groups depend on them: part of the fingerprint

    @property
    def counts(self) -> Mapping[str, int]:
        """Number of elements."""
        return {self.kind: self.count}

    @property
    def num_groups(self) -> int:
        """Number of groups of an epoch."""
        return -(-self.count // self.size)

    def at_hand(self, step: StepShare) -> tuple[GroupSeeds, StepShare]:
        """Return this list and `step` unchanged: every process has all elements."""
        return self, step

    def taken(self, share: StepShare) -> Seeds:
        """Return the groups of a rank's share, in global order."""
        groups = share.positions // self.size
        _, sizes = groups.unique_consecutive(return_counts=True)
        offsets = torch.cat([sizes.new_zeros(1), sizes.cumsum(0)])
        first = int(groups[0]) if groups.numel() else 0
        total = -(-share.order.numel() // self.size)
        elements = share.order[share.mine]
        own = GroupShare(elements, offsets, first, total, self.num_groups, self.targets)
        return Seeds({}, {}, groups=own)

    def affinity_nodes(self, share: StepShare) -> Iterator[tuple[NodeType, Tensor, Tensor]]:
        """Yield nothing: groups are dealt by position."""
        return iter(())

    def digest(self) -> str:
        """Return the hash of the settings and the seed nodes."""

        def hash_into(update: Callable[[bytes | memoryview], None]) -> None:
            update(f"{self.kind}:{self.count}:{self.size}:{self.settings}".encode())
            for node_type, nodes in self.targets.items():
                update(f"{node_type}:{nodes.numel()}:".encode())
                update(array_bytes(nodes))

        return digest_of(hash_into)


def grouped(sampler: Sampler, seeds: SeedList) -> GroupSeeds | None:
    """Return the groups that a sampler makes of seed nodes; None if it takes single seeds."""
    if sampler.seed_kinds != GROUPS:
        return None
    if not isinstance(seeds, NodeSeeds):
        raise ValueError(
            "a sampler of groups with seeds on servers: groups are made where the graph is; open the graph "
            "in this process, or partitioned across ranks"
        )
    if seeds.times is not None:
        raise ValueError("seed_times with a sampler of groups: groups have no times; leave them out")
    return sampler.groups(seeds.nodes)


# A rank's share, a node type, and int64 (n) global ids of nodes with a loss -> float64 (n).
NodeWeights = Callable[[GroupShare, NodeType, Tensor], Tensor]


def group_share(seeds: Seeds) -> GroupShare:
    """Return the groups of the seeds; ValueError if they are nodes or links."""
    if seeds.groups is None:
        raise ValueError(
            "these seeds are no groups, which the sampler needs: give the sampler to khop.Loader, which "
            "makes groups of all seed nodes"
        )
    return seeds.groups


def with_targets(
    sample: Sample, share: GroupShare, members: Mapping[NodeType, Members], weigh: NodeWeights
) -> Sample:
    """Return the sample with the nodes of its groups that have a loss as seeds; targets are ascending."""
    index = {t: _rows_of(members[t].nodes, targets) for t, targets in share.targets.items()}
    return with_seeds(sample, share, index, weigh)


def with_seeds(
    sample: Sample, share: GroupShare, index: Mapping[NodeType, Tensor], weigh: NodeWeights
) -> Sample:
    """Return the sample with rows as seeds, int64 (seeds) by type, and with the weights of their losses.

    Weighted losses add up to the loss of a group, and the loss of the step is the mean over its groups.
    """
    weights: dict[NodeType | EdgeType, Tensor] = {
        t: weigh(share, t, sample.nodes[t][rows]) for t, rows in index.items()
    }
    loss_weights = LossWeights(weights, share.total)
    return replace(sample, seed_index=index, loss_weights=loss_weights, num_groups=share.count)


def equal_weights(share: GroupShare, node_type: NodeType, nodes: Tensor) -> Tensor:
    """Return weights with which the mean over all groups of an epoch is the mean over all seed nodes."""
    return torch.full(nodes.shape, share.num_groups / share.num_targets, dtype=torch.float64)


def _rows_of(nodes: Tensor, targets: Tensor) -> Tensor:
    """Return int64 (n): the rows with a node of `targets`, which are ascending."""
    places = torch.searchsorted(targets, nodes).clamp_(max=targets.numel() - 1)
    return (targets[places] == nodes).nonzero().view(-1) if targets.numel() else places[:0]
