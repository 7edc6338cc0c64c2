"""Small graphs in memory, with features and labels, for the tests of models and training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from khop.batch import Batch
from khop.draw import DrawKey
from khop.graph.features.table import FeatureTable
from khop.graph.rule import Rule
from khop.graph.store import CscGraph, csc_graph_from_edges
from khop.loading.columns import ColumnChoice
from khop.loading.local_source import gather_columns
from khop.sampling.rules.uniform import Uniform
from khop.sampling.sampler import Expansion, NeighborSampler
from khop.sampling.seeds import Seeds
from khop.schema import ColumnSpec, EdgeType, NodeType


@dataclass(frozen=True)
class SmallGraph:
    """A graph store, its features, and its edges as they were given."""

    store: CscGraph
    features: FeatureTable
    edges: Mapping[EdgeType, tuple[Tensor, Tensor]]

    def batch(
        self,
        seeds: Tensor,
        fanouts: list[int],
        node_type: NodeType,
        expansion: Expansion = Expansion.LAYERED,
        key: DrawKey = DrawKey(1),
        rule: Rule = Uniform(),
    ) -> Batch:
        """A batch of seeds with the columns x of all nodes and y of the seeds."""
        sampler = NeighborSampler(self.store, fanouts, expansion=expansion, rule=rule)
        sample = sampler.sample(Seeds({node_type: seeds}, {node_type: torch.arange(len(seeds))}), key)
        of_nodes = {t: ("x",) for t, columns in self.features.columns.items() if "x" in columns}
        of_seeds = {node_type: ("y",)} if "y" in self.features.columns.get(node_type, {}) else {}
        choice = ColumnChoice(of_nodes, {}, of_seeds)
        sample, columns, seed_columns = gather_columns(self.features, choice, sample)
        return Batch(sample, {node_type: seeds}, columns, seed_columns, 0, 0, len(seeds))

    def with_edges(self, ends: Tensor) -> SmallGraph:
        """The same nodes with other edges, of a graph with one edge type."""
        (edge_type,) = self.edges
        return self.with_edges_of({edge_type: (ends[0], ends[1])})

    def with_edges_of(self, edges: Mapping[EdgeType, tuple[Tensor, Tensor]]) -> SmallGraph:
        """The same nodes with other edges."""
        counts = {t: self.store.num_nodes(t) for t in self.store.schema.node_types}
        store = csc_graph_from_edges(counts, dict(edges))
        return SmallGraph(replace(store, schema=self.store.schema), self.features, edges)


def small_graph(
    counts: Mapping[NodeType, int],
    edge_counts: Mapping[EdgeType, int],
    widths: Mapping[NodeType, int],
    target: NodeType,
    num_classes: int = 3,
    dtype: torch.dtype = torch.float32,
) -> SmallGraph:
    """Random edges (with self loops, repeats and isolated nodes), normal features x, random labels y."""
    generator = torch.Generator().manual_seed(len(counts) * 100 + len(edge_counts))
    edges = {
        t: (
            torch.randint(counts[t[0]], (count,), generator=generator),
            torch.randint(counts[t[2]], (count,), generator=generator),
        )
        for t, count in edge_counts.items()
    }
    columns: dict[NodeType | EdgeType, dict[str, Tensor]] = {
        t: {"x": torch.randn(counts[t], width, generator=generator, dtype=dtype)}
        for t, width in widths.items()
    }
    labels = torch.randint(num_classes, (counts[target],), generator=generator)
    columns[target] = {**columns.get(target, {}), "y": labels}
    specs = {
        t: {name: _spec(name, column, num_classes) for name, column in of_type.items()}
        for t, of_type in columns.items()
    }
    store = csc_graph_from_edges(counts, edges)
    store = replace(store, schema=replace(store.schema, columns=specs))
    return SmallGraph(store, FeatureTable(columns), edges)


def one_type(dtype: torch.dtype = torch.float32, num_nodes: int = 60, num_edges: int = 240) -> SmallGraph:
    """A graph with one node type and one edge type."""
    edge_type = ("node", "to", "node")
    return small_graph({"node": num_nodes}, {edge_type: num_edges}, {"node": 7}, "node", dtype=dtype)


def shop(dtype: torch.dtype = torch.float32) -> SmallGraph:
    """Users, items and tags; tags have no column, and nothing leads from users to the target but by items."""
    counts = {"user": 30, "item": 40, "tag": 5}
    edge_counts = {
        ("user", "buys", "item"): 120,
        ("item", "bought_by", "user"): 120,
        ("tag", "on", "item"): 60,
        ("item", "has", "tag"): 60,
    }
    return small_graph(counts, edge_counts, {"user": 4, "item": 6}, "item", dtype=dtype)


def _spec(name: str, column: Tensor, num_classes: int) -> ColumnSpec:
    dtype = str(column.dtype).removeprefix("torch.")
    return ColumnSpec(dtype, tuple(column.shape[1:]), num_classes if name == "y" else None)
