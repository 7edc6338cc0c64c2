"""Settings, arrays and tables shared by all batches with static shapes of a sampler."""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from dataclasses import replace
from weakref import WeakSet

import torch
from torch import Tensor

from khop.graph.rule import Hop, Rule, reads_times
from khop.kernels.triton.exclude_edges import check_pairs
from khop.kernels.triton.node_table import STAMP_LIMIT
from khop.sampling.on_device.capacities import BatchLimits, Capacities
from khop.sampling.on_device.edge_arrays import Degrees, EdgeArrays, edge_arrays, stream_of
from khop.sampling.on_device.inputs import PairsByType
from khop.sampling.on_device.type_nodes import DenseTable, TreeTable
from khop.sampling.outputs import Output
from khop.sampling.rules.sum import COUNTING
from khop.sampling.sampler import Expansion, NeighborSampler
from khop.schema import EdgeType, NodeType


class Stamps:
    """Numbers of the batches of plans that share a stream. Tables are cleared before the numbers start again.

    It does not keep tables alive: those of plans that are no longer in use are freed.
    """

    def __init__(self, last: int) -> None:
        self._last = last
        self.tables: WeakSet[DenseTable | TreeTable] = WeakSet()

    def next(self) -> int:
        """Return the number of the next batch, from 1."""
        if self._last == STAMP_LIMIT:
            for table in self.tables:
                table.clear()
            self._last = 0
        self._last += 1
        return self._last


class BatchPlan:
    """Settings, arrays and tables of batches with static shapes: one plan per sampler and stream of a device.

    Batches of a plan must be made one after another, in one stream: they share tables. The tables take 8
    bytes per node, or 16 to 32 bytes per node of a batch with disjoint trees.
    """

    def __init__(
        self,
        sampler: NeighborSampler,
        capacities: Capacities,
        device: torch.device | str,
        *,
        last_stamp: int = 0,
    ) -> None:
        if sampler.output is not Output.DIRECTIONAL:
            raise ValueError(
                f"output {sampler.output}: has no static shapes; take directional, or sample on the CPU"
            )
        graph = sampler.graph.in_one_piece("sampling on the device")
        self._graph = graph
        self.sampler = sampler
        self.device = torch.device(device)
        self.node_types = graph.schema.node_types
        followed = [t for t in graph.schema.edge_types if any(hop.fanouts.get(t) for hop in sampler.hops)]
        self.arrays: Mapping[EdgeType, EdgeArrays] = {
            t: edge_arrays(graph, t, sampler.hops[0], self.device) for t in followed
        }
        for hop in sampler.hops:
            for edge_type, arrays in self.arrays.items():
                arrays.check_fanout(edge_type, hop)
        self.has_weights = self._has_weights()
        counted = sampler.rule.degrees
        self.degrees = None if counted is None else self._degrees(counted)  # see `SymmetricSum`
        for arrays in self.arrays.values():
            _ = arrays.csc.most_edges  # read from the device now, not in the first batch
        self.tables: Mapping[NodeType, DenseTable | TreeTable] = {}
        self._stamps = Stamps(last_stamp)
        self._fit(capacities)
        self.last_made = torch.zeros(1, dtype=torch.int64, device=self.device)  # stamp of the last batch

    def resized(self, capacities: Capacities) -> BatchPlan:
        """Return a plan of batches with other capacities; both share arrays and tables, and one stream."""
        other = copy(self)
        other._fit(capacities)
        return other

    @property
    def limits(self) -> BatchLimits:
        """The most nodes and edges of a batch; without limits for disjoint trees, which repeat them."""
        if self.sampler.is_disjoint:
            return BatchLimits({}, {})
        nodes = {t: self._graph.num_nodes(t) for t in self.node_types}
        return BatchLimits(nodes, {t: arrays.csc.num_edges for t, arrays in self.arrays.items()})

    @property
    def hops(self) -> tuple[Hop, ...]:
        """Parameters of every hop; draws keep the edges if their times are read."""
        hops = self.sampler.hops
        return tuple(replace(hop, edge_ids=True) for hop in hops) if self.rule.has_times else hops

    @property
    def rule(self) -> Rule:
        """The rule of all draws."""
        return self.sampler.rule

    @property
    def has_edge_ids(self) -> bool:
        """True if samples have the ids of edges."""
        return any(hop.edge_ids for hop in self.sampler.hops)

    @property
    def is_layered(self) -> bool:
        """True if every hop expands all nodes so far."""
        return self.sampler.expansion is Expansion.LAYERED

    @property
    def is_timed(self) -> bool:
        """True if seeds have time limits."""
        return reads_times(self.rule)

    def stream(self, hop: Hop, edge_type: EdgeType) -> int:
        """Return the counter word of a hop's draws."""
        return stream_of(self._graph, edge_type, hop)

    def next_stamp(self) -> int:
        """Return the number of the next batch: it rises, and tables tell batches apart by it."""
        stamp = self._stamps.next()
        if stamp == 1:
            self.last_made.zero_()
        return stamp

    def _fit(self, capacities: Capacities) -> None:
        """Take capacities, and the tables and inputs that depend on them."""
        graph = self._graph
        self.capacities = capacities
        self.seeds: Mapping[NodeType, int] = {t: n for t, n in capacities.nodes[0].items() if n}
        if not self.tables or self.sampler.is_disjoint:
            self.tables = {t: self._table(t, graph.num_nodes(t)) for t in self.node_types}
            self._stamps.tables.update(self.tables.values())
        self.excluded: PairsByType = {
            t: (n, graph.num_nodes(t[0])) for t, n in capacities.excluded.items() if n
        }
        for edge_type in self.excluded:
            check_pairs(graph.num_nodes(edge_type[0]), graph.num_nodes(edge_type[2]))

    def _has_weights(self) -> bool:
        """Return True if edges have weights; ValueError if kernels cannot compute them."""
        rule, fanouts = self.rule, {f for hop in self.hops for f in hop.fanouts.values() if f}
        weighed = sorted(f for f in fanouts if rule.has_weights(f))
        if weighed and not all(arrays.has_weights for arrays in self.arrays.values()):
            raise ValueError(f"{rule} with fanouts {weighed} is not supported on a GPU; sample on the CPU")
        return bool(weighed)

    def _degrees(self, counted: Rule) -> Degrees:
        """Return the in-degree of every node, added up over edge types as `counted_degrees` does."""
        if counted != COUNTING:
            raise ValueError(f"{self.rule}: no kernel counts degrees by {counted}; sample on the CPU")
        found: dict[NodeType, Tensor] = {}
        for edge_type in self._graph.schema.edge_types:
            of_type = self._graph.csc(edge_type).indptr.to(self.device).diff().float().double()
            node_type = edge_type[2]
            found[node_type] = found[node_type] + of_type if node_type in found else of_type
        return {t: degrees.clamp_(min=1) for t, degrees in found.items()}

    def _table(self, node_type: NodeType, num_nodes: int) -> DenseTable | TreeTable:
        if not self.sampler.is_disjoint:
            return DenseTable(num_nodes, self.device)
        most, trees = self.capacities.nodes[-1][node_type], sum(self.seeds.values())
        if self.rule.has_paths:  # a tree for each drawn edge, which is an int32 at most
            trees += 1 << 31
        return TreeTable(num_nodes, most, trees, self.device)
