"""A sampler written outside khop that gives one subgraph: GraphSAINT's nodes (Zeng et al. 2020)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import product
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import khop
from extension.training import losses_of, train
from khop.batch import Adjacency, Batch, LossWeights, Sample, Subgraph
from khop.draw import DrawKey, Frontier, Neighbors
from khop.graph.rule import Hop
from khop.graph.store import GraphStore
from khop.sampling.sampler import check_seeds
from khop.schema import EdgeType, NodeType
from khop.testing.graphs import PlainGraph
from khop.testing.sampler import PROMISES, Make
from support.covered import covered
from support.small_graphs import one_type
from support.started_ranks import StartedRanks


class SaintNodes(khop.SamplerBase):
    """The subgraph that the seeds of a step, over all ranks, induce.

    Seeds are draws from `draw_probabilities`, with replacement: n seeds of a step are one node sample.
    As in section 3.2, an edge (u, v) of the normalized adjacency, 1 / (degree + 1), is divided by alpha =
    p(u, v) / p(v), and the loss of v by lambda = p(v). p is the probability that nodes are in the sample.
    Every rank makes the same subgraph and has the losses of its own seeds.
    """

    def __init__(self, graph: GraphStore, layers: int) -> None:
        super().__init__(graph)
        self._layers = layers
        self._everything = Hop(0, dict.fromkeys(graph.schema.edge_types, -1), khop.Uniform(), edge_ids=True)
        self._norms = {t: torch.zeros(graph.num_nodes(t)).double() for t in graph.schema.node_types}
        nodes = {t: torch.arange(graph.num_nodes(t)) for t in graph.schema.node_types}
        for (source, _, into), found in self._in_edges(nodes).items():
            shares = 1 / (found.offsets.diff().double() + 1)
            self._norms[into] += shares**2  # the node's own entry
            squares = torch.repeat_interleave(shares**2, found.offsets.diff())
            self._norms[source].index_add_(0, found.nodes.long(), squares)

    @property
    def num_layers(self) -> int:
        return self._layers

    def draw_probabilities(self, node_type: NodeType) -> Tensor:
        """Probability of each node in one draw: the square norm of its column of the adjacency."""
        norms = self._norms[node_type] + 1e-12
        return norms / norms.sum()

    def sample(self, seeds: khop.Seeds, key: DrawKey) -> Sample:
        check_seeds(self.graph, seeds.nodes)
        drawn = seeds.nodes if seeds.batch_nodes is None else seeds.batch_nodes
        none = torch.empty(0, dtype=torch.int64)
        nodes = {t: drawn.get(t, none).unique() for t in self.graph.schema.node_types}
        adjacencies = {t: self._induced(t, nodes, drawn, found) for t, found in self._in_edges(nodes).items()}
        per_hop = {t: (ids.numel(), *[0] * self._layers) for t, ids in nodes.items()}
        subgraph = Subgraph(adjacencies, per_hop, edges_per_hop=None)
        index = {t: torch.searchsorted(nodes[t], ids) for t, ids in seeds.nodes.items()}
        weights = {t: self._loss_weights(t, ids, drawn[t]) for t, ids in seeds.nodes.items()}
        total = float(sum(self.graph.num_nodes(t) for t in drawn))  # the weights' expected sum
        loss_weights = LossWeights(weights, total) if total else None
        return Sample(nodes, subgraph.blocks(), index, subgraph, loss_weights=loss_weights)

    def _in_edges(self, nodes: Mapping[NodeType, Tensor]) -> Mapping[EdgeType, Neighbors]:
        frontier = {t: Frontier(ids) for t, ids in nodes.items()}
        return self.graph.sample_hop(frontier, self._everything, DrawKey(0))

    def _induced(
        self,
        edge_type: EdgeType,
        nodes: Mapping[NodeType, Tensor],
        drawn: Mapping[NodeType, Tensor],
        found: Neighbors,
    ) -> Adjacency:
        source, _, into = edge_type
        degrees = found.offsets.diff()
        rows = torch.repeat_interleave(torch.arange(degrees.numel()), degrees)
        places = torch.searchsorted(nodes[source], found.nodes.long())
        known = torch.zeros_like(rows, dtype=torch.bool)
        if nodes[source].numel():
            known = nodes[source][places.clamp(max=nodes[source].numel() - 1)] == found.nodes
        rows, places = rows[known], places[known]
        ends = nodes[source][places], nodes[into][rows]
        sizes = tuple(drawn.get(t, rows[:0]).numel() for t in (source, into))
        alpha = self._pairs(edge_type, ends, sizes) / self._inside(into, ends[1], sizes[1])
        weight = 1 / (degrees[rows].double() + 1) / alpha
        counts = torch.bincount(rows, minlength=degrees.numel())
        indptr = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
        assert found.edges is not None
        edge_ids, count = found.edges[known], nodes[source].numel()
        return Adjacency(indptr, places.int(), count, edge_ids, weight=weight.float())

    def _inside(self, node_type: NodeType, nodes: Tensor, size: int) -> Tensor:
        """Probability that a node is in a sample of so many draws."""
        return 1 - (1 - self.draw_probabilities(node_type)[nodes]) ** size

    def _pairs(self, edge_type: EdgeType, ends: tuple[Tensor, Tensor], sizes: tuple[int, ...]) -> Tensor:
        """Probability that both ends of an edge are in a sample."""
        source, _, into = edge_type
        inside = [self._inside(t, of, size) for t, of, size in zip((source, into), ends, sizes, strict=True)]
        if source != into:
            return inside[0] * inside[1]
        p, q = (self.draw_probabilities(source)[of] for of in ends)
        both = inside[0] + inside[1] - 1 + (1 - p - q).clamp(min=0) ** sizes[0]
        return torch.where(ends[0] == ends[1], inside[0], both)

    def _loss_weights(self, node_type: NodeType, own: Tensor, drawn: Tensor) -> Tensor:
        """1 / lambda for each node of the sample, divided among the draws of the node."""
        nodes, counts = drawn.unique(return_counts=True)
        times = counts[torch.searchsorted(nodes, own)] if own.numel() else own
        return 1 / (self._inside(node_type, own, drawn.numel()) * times)


@pytest.mark.core(4)
@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.__name__)
def test_it_keeps_the_promises_of_a_sampler(promise: Callable[[Make], None]) -> None:
    promise(lambda graph: SaintNodes(graph, 2))


TO = ("node", "to", "node")
PAIRS = [(1, 0), (2, 0), (2, 1), (0, 2), (3, 2), (3, 3), (1, 3)]
DRAWS = 3


def test_over_all_samples_values_and_losses_are_those_of_the_whole_graph() -> None:
    """Every sequence of draws with its probability: sums of neighbors and losses have no bias."""
    graph = PlainGraph({"node": 4}, {TO: PAIRS}).in_memory()
    sampler = SaintNodes(graph, 1)
    p = sampler.draw_probabilities("node")
    x = torch.tensor([1.0, -2.0, 5.0, 0.5], dtype=torch.float64)
    each_loss = torch.tensor([3.0, 1.0, -4.0, 2.5], dtype=torch.float64)
    degrees = torch.bincount(torch.tensor([into for _, into in PAIRS]), minlength=4)
    expected = torch.zeros(4, dtype=torch.float64)
    for of, into in PAIRS:
        expected[into] += x[of] / (degrees[into] + 1)
    sums, inside, loss = torch.zeros(4).double(), torch.zeros(4).double(), 0.0
    for nodes in product(range(4), repeat=DRAWS):
        drawn = torch.tensor(nodes)
        probability = float(p[drawn].prod())
        sample = sampler.sample(khop.Seeds({"node": drawn}, {}), DrawKey(0))
        (adjacency,) = sample.blocks[0].adjacencies.values()
        source, into = adjacency.edge_index
        ids = sample.nodes["node"]
        assert adjacency.weight is not None
        values = (
            torch.zeros(len(ids)).double().index_add_(0, into, adjacency.weight.double() * x[ids[source]])
        )
        sums[ids] += probability * values
        inside[ids] += probability
        assert sample.loss_weights is not None
        weights = sample.loss_weights.by_type["node"]
        loss += probability * float((weights * each_loss[drawn]).sum()) / sample.loss_weights.total
    torch.testing.assert_close(sums / inside, expected, rtol=1e-6, atol=1e-6)  # weights are float32
    assert loss == pytest.approx(float(each_loss.mean()), rel=1e-12)


class Saint(nn.Module):
    """Layers of W h + V times the weighted sum of neighbors, over blocks with edge weights."""

    def __init__(self, inputs: int, hidden: int, classes: int) -> None:
        super().__init__()
        sizes = ((inputs, hidden), (hidden, classes))
        self.own = nn.ModuleList(nn.Linear(*size) for size in sizes)
        self.neighbors = nn.ModuleList(nn.Linear(*size, bias=False) for size in sizes)

    def forward(self, batch: Batch) -> Tensor:
        h = batch["x"]
        for number, (own, neighbors) in enumerate(zip(self.own, self.neighbors, strict=True)):
            adjacency = batch.blocks[number].adjacency
            assert adjacency.weight is not None
            source, into = adjacency.edge_index
            messages = h[source] * adjacency.weight.to(h)[:, None]
            sums = h.new_zeros(adjacency.num_dst, h.shape[1]).index_add(0, into, messages)
            h = own(h[: adjacency.num_dst]) + neighbors(sums)
            h = h.relu() if number == 0 else h
        return h[batch.seed_index]


def test_training_has_the_same_losses_on_one_process_and_on_two_ranks(
    tmp_path: Path, ranks: StartedRanks
) -> None:
    for name, procs in (("one", 1), ("two", 2)):
        ranks.launch(train_saint, procs, (str(tmp_path / name),))
    one, two = losses_of(tmp_path / "one"), losses_of(tmp_path / "two")
    assert two == pytest.approx(one, rel=1e-12)
    assert len(set(one)) == len(one) > 4


@covered
def train_saint(rank: int, device: torch.device, out: str) -> None:
    """Two layers over the subgraph of the step."""
    small = one_type(torch.float64)
    graph = khop.Graph(small.store, small.features)
    with torch.random.fork_rng():
        torch.manual_seed(3)
        model = Saint(7, 8, 3)
    train(graph, Path(out), SaintNodes(graph, 2), model)
