"""GraphSAINT: counts of presampled subgraphs against enumeration, and estimates without bias."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from types import SimpleNamespace

import pytest
import torch
from torch_geometric.loader.graph_saint import GraphSAINTSampler

import khop
from khop.draw import DrawKey, Purpose
from khop.graph.store import csc_graph_from_edges
from khop.sampling.group_samplers import SaintDraw
from khop.sampling.seeds import GroupShare
from support.group_graphs import TO, edges_of, nodes_of, sums

# In-neighbors; node 4 has none, so walks end there.
PAIRS = [(1, 0), (2, 0), (0, 1), (0, 2), (3, 2), (2, 3), (4, 3), (3, 3)]
ORDERED = sorted(PAIRS, key=lambda pair: pair[1])  # as rows of in-edges have them
COUNT = 5
IN = {node: [source for source, into in PAIRS if into == node] for node in range(COUNT)}
DRAWS = [khop.SaintNodes(3), khop.SaintEdges(2), khop.SaintWalks(2, 2)]


def graph() -> khop.Graph:
    ends = torch.tensor(PAIRS).T
    return khop.Graph(csc_graph_from_edges({"node": COUNT}, {TO: (ends[0], ends[1])}), None)  # type: ignore[arg-type]


def walks(root: int, steps: int) -> Iterator[tuple[float, list[int]]]:
    """Every walk from a node, with its probability."""
    if steps == 0 or not IN[root]:
        yield 1.0, [root]
        return
    for source in IN[root]:
        for probability, visited in walks(source, steps - 1):
            yield probability / len(IN[root]), [root, *visited]


def subgraphs(draw: SaintDraw) -> Iterator[tuple[float, set[int]]]:
    """Every set of nodes that a draw may give, with its probability (not merged)."""
    if isinstance(draw, khop.SaintNodes):
        one = [(len(IN[node]) / len(PAIRS), [node]) for node in range(COUNT)]
    else:
        one = [(p / COUNT, visited) for root in range(COUNT) for p, visited in walks(root, draw.steps)]
    for drawn in product(one, repeat=draw.first.per_positive):
        probability, nodes = 1.0, set()
        for p, visited in drawn:
            probability *= p
            nodes |= set(visited)
        yield probability, nodes


def enumerated(draw: SaintDraw) -> tuple[torch.Tensor, torch.Tensor]:
    """The probabilities that a subgraph contains each node, and each edge in CSC order."""
    nodes, edges = torch.zeros(COUNT).double(), torch.zeros(len(PAIRS)).double()
    for probability, inside in subgraphs(draw):
        for node in inside:
            nodes[node] += probability
        for position, (source, into) in enumerate(ORDERED):
            if source in inside and into in inside:
                edges[position] += probability
    return nodes, edges


@pytest.mark.parametrize("draw", DRAWS, ids=lambda draw: type(draw).__name__)
def test_presampled_counts_are_the_enumerated_probabilities(draw: SaintDraw) -> None:
    sampler = khop.SaintSampler(graph(), draw, layers=1, coverage=4000, seed=9)
    counts, (nodes, edges) = sampler.counts, enumerated(draw)
    for found, expected in ((counts.nodes, nodes), (counts.edges, edges)):
        deviation = (expected * (1 - expected) / counts.subgraphs).sqrt()
        error = (found.double() / counts.subgraphs - expected).abs()
        assert (error <= 4.5 * deviation + 1e-12).all(), (found / counts.subgraphs, expected)
    assert counts.nodes.sum() >= 4000 * COUNT


class Replayed(torch.utils.data.Dataset):
    """Presampled subgraphs in the form in which torch_geometric's GraphSAINT samplers draw them.

    Their coefficients are computed in torch; only their draws need torch-sparse. It counts edges by their
    first end and the paper by the end that aggregates, so edges are turned here.
    """

    num_workers, log, sample_coverage, N, E = 0, False, 1, COUNT, len(PAIRS)

    def __init__(self, subgraphs: list[tuple[list[int], list[tuple[int, int]]]]) -> None:
        self.subgraphs, self.num_steps = subgraphs, len(subgraphs)
        sources, destinations = torch.tensor(ORDERED).T
        self.adj = SimpleNamespace(coo=lambda: (destinations, sources, torch.arange(len(PAIRS))))

    def __len__(self) -> int:
        return self.num_steps

    def __getitem__(self, number: int) -> tuple[torch.Tensor, SimpleNamespace]:
        nodes, pairs = self.subgraphs[number]
        edges = torch.tensor([ORDERED.index(pair) for pair in pairs], dtype=torch.int64)
        return torch.tensor(nodes), SimpleNamespace(storage=SimpleNamespace(value=lambda: edges))


@pytest.mark.core(1)
@pytest.mark.parametrize("draw", DRAWS, ids=lambda draw: type(draw).__name__)
def test_coefficients_are_those_of_torch_geometric(draw: SaintDraw) -> None:
    sampler = khop.SaintSampler(graph(), draw, layers=1, coverage=60, seed=9)
    many, everyone = sampler.counts.subgraphs, {"node": torch.arange(COUNT)}
    one_each = torch.arange(many + 1)
    share = GroupShare(one_each[:-1], one_each, 0, many, many, everyone)
    sample = sampler.sample(khop.Seeds({}, {}, groups=share), DrawKey.of(9, Purpose.PRESAMPLE))
    drawn = [(nodes_of(sample, group), edges_of(sample, group)) for group in range(many)]
    of_nodes, of_edges = GraphSAINTSampler._compute_norm(Replayed(drawn))  # 1 / lambda / N, and 1 / alpha
    rows, source_and_destination = sample.nodes["node"], sample.blocks[0].adjacencies[TO].edge_index
    ends = list(zip(*rows[source_and_destination].tolist(), strict=True))
    degree = torch.tensor([len(IN[into]) for _, into in ends])
    weights = sample.blocks[0].adjacencies[TO].weight
    assert weights is not None
    expected = of_edges[[ORDERED.index(pair) for pair in ends]] / degree
    torch.testing.assert_close(weights, expected)
    seeds = rows[sample.seed_index["node"]]
    losses = sample.weighted(torch.ones(seeds.numel()), many)
    torch.testing.assert_close(losses, of_nodes[seeds])


@pytest.mark.parametrize("draw", DRAWS, ids=lambda draw: type(draw).__name__)
def test_sums_of_neighbors_and_losses_have_no_bias(draw: SaintDraw) -> None:
    """Given the node, the mean of its weighted sum over subgraphs is that of all neighbors."""
    sampler = khop.SaintSampler(graph(), draw, layers=1, coverage=4000, seed=2)
    x, each = torch.tensor([1.0, -2, 5, 0.5, 3]).double(), torch.tensor([3.0, 1, -4, 2.5, 6]).double()
    targets = {"node": torch.arange(4)}  # SaintNodes never draws node 4, which has no in-edges
    many = 20_000
    one_each = torch.arange(many + 1)
    share = GroupShare(one_each[:-1], one_each, 0, many, many, targets)
    sample = sampler.sample(khop.Seeds({}, {}, groups=share), DrawKey(77))
    rows, values = sample.nodes["node"], sums(sample, x)
    for node in range(4):
        drawable = [s for s in IN[node] if IN[s] or not isinstance(draw, khop.SaintNodes)]
        expected = sum(float(x[source]) for source in drawable) / len(IN[node])
        found = values[rows == node]
        assert abs(float(found.mean()) - expected) <= 5 * float(found.std()) / len(found) ** 0.5 + 0.02
    losses = sample.weighted(each[rows[sample.seed_index["node"]]], many) / many
    assert float(losses.sum()) == pytest.approx(float(each[:4].mean()), abs=0.06)


def test_the_key_and_the_position_decide_a_subgraph() -> None:
    sampler = khop.SaintSampler(graph(), khop.SaintWalks(2, 2), layers=2)
    loader = khop.Loader(sampler, torch.arange(COUNT), 3)
    again = khop.Loader(khop.SaintSampler(graph(), khop.SaintWalks(2, 2), layers=2), torch.arange(COUNT), 3)
    for batch, other in zip(loader.epoch(2), again.epoch(2), strict=True):
        assert torch.equal(batch.input_nodes, other.input_nodes)
        assert torch.equal(batch.blocks[0].adjacency.weight, other.blocks[0].adjacency.weight)
        assert len(batch.blocks) == 2


def test_bad_settings_are_named() -> None:
    with pytest.raises(ValueError, match=r"draw 3: must be khop\.SaintNodes"):
        khop.SaintSampler(graph(), 3, layers=1)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="length 0"):
        khop.SaintWalks(1, 0)
    pairs = torch.zeros(2, 1, dtype=torch.int64)
    typed = csc_graph_from_edges({"user": 2, "item": 2}, {("user", "buys", "item"): (pairs[0], pairs[1])})
    with pytest.raises(ValueError, match="a walk needs edges among nodes of one type"):
        khop.SaintSampler(typed, khop.SaintNodes(2), layers=1)
