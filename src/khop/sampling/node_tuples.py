"""Groups of nodes as seeds, of one size, such as hyperedges: one label each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from khop.arguments import as_mapping, shown
from khop.graph.store import GraphStore
from khop.sampling.node_set import check_ids
from khop.sampling.sampler import Seeds
from khop.sampling.seeds import StepShare, array_bytes, digest_of, numbers_by_type
from khop.schema import NodeType, sole_type


@dataclass(frozen=True, eq=False)
class NodeTuples:
    """Seeds of N groups of M nodes each, such as hyperedges; each group is one seed, used once per epoch.

    A batch has the nodes of its groups as seeds, group after group, so the output of a model has n * M rows.
    `batch.tuple_labels` has their labels by node type. `batch.global_mean` takes one loss per group.
    Duplicates are allowed.
    """

    nodes: Tensor | Mapping[NodeType, Tensor]  # int64 (N, M), global ids; of several types by node type
    labels: Tensor | Mapping[NodeType, Tensor] | None = None  # (N, ...), one per group

    def of_graph(self, graph: GraphStore) -> SeedTuples:
        """Return the seeds by node type; ValueError for values that do not fit."""
        types = graph.schema.node_types
        nodes = as_mapping(self.nodes, lambda one: {sole_type(types, "tuples without a node type"): one})
        labels = as_mapping({} if self.labels is None else self.labels, lambda one: dict.fromkeys(nodes, one))
        for node_type, ids in nodes.items():
            if node_type not in types:
                raise ValueError(f"tuples of {node_type!r}: not a node type; there are {types}")
            if not isinstance(ids, Tensor) or ids.dim() != 2 or ids.dtype not in (torch.int32, torch.int64):
                what = f"{ids.dtype} of shape {tuple(ids.shape)}" if isinstance(ids, Tensor) else shown(ids)
                raise ValueError(
                    f"tuples of {node_type!r}: {what}; give int64 (N, M), a row of ids per group"
                )
            if ids.shape[1] < 1:
                raise ValueError(f"tuples of {node_type!r}: of 0 nodes each; give one or more")
            check_ids(f"tuples of {node_type!r}", ids.flatten(), graph.num_nodes(node_type))
            if node_type in labels and len(labels[node_type]) != len(ids):
                count = len(labels[node_type])
                raise ValueError(f"labels of {node_type!r}: {count} for {len(ids)} tuples; give one for each")
        return SeedTuples({t: ids.long() for t, ids in nodes.items()}, dict(labels))


@dataclass(frozen=True, eq=False)
class SeedTuples:
    """A list of tuples of nodes, checked."""

    nodes: Mapping[NodeType, Tensor]  # int64 (tuples, nodes), global ids
    labels: Mapping[NodeType, Tensor]  # (tuples, ...), of the types that have some

    @property
    def counts(self) -> Mapping[NodeType, int]:
        """Number of tuples by type."""
        return {node_type: len(ids) for node_type, ids in self.nodes.items()}

    def at_hand(self, step: StepShare) -> tuple[SeedTuples, StepShare]:
        """Return this list and `step` unchanged: every process has all tuples."""
        return self, step

    def taken(self, share: StepShare) -> Seeds:
        """Return the nodes of a rank's share, tuple after tuple, in global order."""
        nodes, positions, labels = {}, {}, {}
        for t, numbers, at in numbers_by_type(self.counts, share):
            width = self.nodes[t].shape[1]
            nodes[t] = self.nodes[t][numbers].flatten()
            positions[t] = (at[:, None] * width + torch.arange(width)).flatten()
            if t in self.labels:
                labels[t] = self.labels[t][numbers]
        whole = nodes if share.is_whole else self.taken(share.of_all_ranks).nodes
        return Seeds(nodes, positions, batch_nodes=whole, tuple_labels=labels)

    def affinity_nodes(self, share: StepShare) -> Iterator[tuple[NodeType, Tensor, Tensor]]:
        """Yield by type the first nodes of the tuples and their positions."""
        for node_type, numbers, at in numbers_by_type(self.counts, share):
            yield node_type, self.nodes[node_type][numbers, 0], at

    def digest(self) -> str:
        """Return the hash of types, ids and labels."""

        def hash_into(update: Callable[[bytes | memoryview], None]) -> None:
            for node_type, ids in self.nodes.items():
                update(f"tuples:{node_type}:{tuple(ids.shape)}:".encode())
                update(array_bytes(ids))
            for node_type, labels in self.labels.items():
                update(f"labels:{node_type}:{labels.dtype}:".encode())
                update(array_bytes(labels))

        return digest_of(hash_into)
