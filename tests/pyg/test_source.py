"""Sources of a sampler: edges and their attributes, however they are given.

Edges are followed backward and both ways, as by torch_geometric's samplers.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData
from torch_geometric.sampler import NodeSamplerInput, SamplerOutput
from torch_geometric.sampler import neighbor_sampler as theirs

from khop import pyg
from khop.pyg import BidirectionalNeighborSampler, LinkNeighborLoader, NeighborLoader, NeighborSampler
from pyg.pyg_cases import BUYS, PAIRS, plain, typed


def test_a_sparse_tensor_of_torch_sparse_is_taken_as_it_lies() -> None:
    """By its `csr()`, rows being destinations; stood in for here, as torch-sparse need not be there."""

    class Sparse:
        def csr(self) -> tuple[Tensor, Tensor, None]:
            return torch.tensor([0, 2, 2, 3]), torch.tensor([1, 2, 0]), None

    sampler = NeighborSampler(Data(num_nodes=3, adj_t=Sparse()), [-1])
    out = sampler.sample_from_nodes(NodeSamplerInput(None, torch.tensor([0, 2])))
    assert out.node.tolist() == [0, 2, 1]
    assert torch.stack([out.row, out.col]).tolist() == [[2, 1, 0], [0, 0, 1]]
    assert sampler.edge_permutation is None


@pytest.mark.parametrize("kind", ["bidirectional", "induced"])
@pytest.mark.parametrize(
    ("name", "inputs"), [("NeighborLoader", torch.arange(9)), ("LinkNeighborLoader", PAIRS)]
)
def test_attributes_of_edges_are_those_of_the_edge_whichever_way_it_is_shown(
    name: str, inputs: Tensor, kind: str
) -> None:
    data = plain()
    assert data.edge_index is not None
    turned = 0
    for batch in getattr(pyg, name)(data, [2, 2], inputs, subgraph_type=kind, batch_size=4):
        shown, of_graph = batch.n_id[batch.edge_index], data.edge_index[:, batch.e_id]
        forward = (shown == of_graph).all(0)
        assert bool((forward | (shown == of_graph.flip(0)).all(0)).all())
        assert torch.equal(batch.edge_attr, data.edge_attr[batch.e_id])
        turned += int((~forward).sum())
    assert (turned > 0) == (kind == "bidirectional")


SEEDS = torch.tensor([3, 8, 1])
Edge = tuple[int, ...]


def edges_of(data: Data, nodes: Tensor, output: SamplerOutput, permutation: Tensor | None) -> list[Edge]:
    """Every edge of an output as the data's edge, which it is shown to be."""
    ids = output.edge.long() if permutation is None else permutation[output.edge.long()]
    ends = torch.stack([nodes[output.row], nodes[output.col]])
    assert torch.equal(ends, data.edge_index[:, ids])
    return sorted(map(int, ids))  # type: ignore[arg-type]


def reached(edge_index: Tensor, seeds: Tensor, hops: int, ways: tuple[int, ...]) -> tuple[set[int], set[int]]:
    """Nodes and edges that `hops` rounds find; of each edge, the end at which a round stands is in `ways`."""
    nodes, frontier, found = set(seeds.tolist()), set(seeds.tolist()), set()
    for _ in range(hops):
        ids = {e for way in ways for e in range(edge_index.shape[1]) if int(edge_index[way, e]) in frontier}
        found |= ids
        ends = {int(end) for e in ids for end in edge_index[:, e]}
        frontier = ends - nodes
        nodes |= ends
    return nodes, found


@pytest.mark.parametrize("hops", [1, 2])
def test_backward_follows_edges_from_their_sources(hops: int) -> None:
    data = plain()
    sampler = NeighborSampler(data, [-1] * hops, sample_direction="backward")
    output = sampler.sample_from_nodes(NodeSamplerInput(None, SEEDS))
    nodes, edges = reached(data.edge_index, SEEDS, hops, (0,))
    assert set(output.node.tolist()) == nodes
    assert edges_of(data, output.node, output, sampler.edge_permutation) == sorted(edges)
    assert sum(output.num_sampled_nodes) == len(nodes)
    assert sum(output.num_sampled_edges) == len(edges)


def test_a_typed_backward_loader_gives_the_datas_edge_types() -> None:
    data = typed()
    sampler = NeighborSampler(data, {t: [-1] for t in data.edge_types}, sample_direction="backward")
    (batch,) = NeighborLoader(
        data, [-1], ("user", torch.tensor([2, 5])), neighbor_sampler=sampler, batch_size=2
    )
    assert isinstance(batch, HeteroData)
    edges = batch[BUYS]
    carried = torch.stack([batch["user"].n_id[edges.edge_index[0]], batch["item"].n_id[edges.edge_index[1]]])
    assert torch.equal(carried, data[BUYS].edge_index[:, edges.edge_attr])  # the attribute numbers the edges
    sources = data[BUYS].edge_index[0]
    assert sorted(edges.edge_attr.tolist()) == sorted(
        ((sources == 2) | (sources == 5)).nonzero().view(-1).tolist()
    )


@pytest.mark.parametrize("hops", [1, 2, 3])
def test_both_ways_find_every_edge_at_a_node_once(hops: int) -> None:
    data = plain()
    sampler = BidirectionalNeighborSampler(data, [-1] * hops)
    output = sampler.sample_from_nodes(NodeSamplerInput(None, SEEDS))
    nodes, edges = reached(data.edge_index, SEEDS, hops, (0, 1))
    assert output.node[:3].tolist() == SEEDS.tolist()
    assert set(output.node.tolist()) == nodes
    assert edges_of(data, output.node, output, sampler.edge_permutation) == sorted(edges)
    assert sum(output.num_sampled_edges) == len(edges)


class Lent:
    """khop's draws in the place of those that torch_geometric's sampler takes from a compiled extra."""

    def __init__(self, data: Data, direction: str) -> None:
        self._data, self._direction = data, direction
        self.num_neighbors: list[int] = []
        self.disjoint = False

    def _sample(self, seed: Tensor, seed_time: None) -> SamplerOutput:
        sampler = NeighborSampler(self._data, self.num_neighbors, sample_direction=self._direction)
        output = sampler.sample_from_nodes(NodeSamplerInput(None, seed))
        output.edge = sampler.edge_permutation[output.edge.long()]
        return output


@pytest.mark.skipif(not hasattr(theirs, "BidirectionalNeighborSampler"), reason="came with 2.7")
@pytest.mark.parametrize("hops", [1, 2])
def test_their_own_bidirectional_sampler_finds_the_same(
    hops: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    data = plain()
    made: list[Any] = [Lent(data, "forward"), Lent(data, "backward")]
    monkeypatch.setattr(
        theirs, "NeighborSampler", lambda *_, sample_direction, **__: made[sample_direction != "forward"]
    )
    expected = theirs.BidirectionalNeighborSampler(data, [-1] * hops)
    expected.data_type = theirs.DataType.homogeneous
    monkeypatch.setattr(type(expected), "is_hetero", property(lambda self: False))
    found = expected._sample(SEEDS)
    ours = BidirectionalNeighborSampler(data, [-1] * hops).sample_from_nodes(NodeSamplerInput(None, SEEDS))
    assert set(found.node.tolist()) == set(ours.node.tolist())
    assert edges_of(data, found.node, found, None) == edges_of(data, ours.node, ours, None)


def test_both_ways_of_disjoint_and_typed_samples() -> None:
    data = plain()
    apart = BidirectionalNeighborSampler(data, [-1], disjoint=True)
    output = apart.sample_from_nodes(NodeSamplerInput(None, SEEDS))
    edges_of(data, output.node, output, None)
    for tree, seed in enumerate(SEEDS.tolist()):
        mine = output.batch[output.col] == tree
        ends = data.edge_index
        at_seed = ((ends[0] == seed) | (ends[1] == seed)).nonzero().view(-1)
        assert sorted(output.edge[mine].tolist()) == at_seed.tolist()
    of_types = BidirectionalNeighborSampler(typed(), [-1])
    found = of_types.sample_from_nodes(NodeSamplerInput(None, torch.tensor([2]), None, "item"))
    back = typed()["item", "rev_buys", "user"].edge_index[0]
    assert sorted(found.edge["item", "rev_buys", "user"].tolist()) == (back == 2).nonzero().view(-1).tolist()


def test_both_rows_of_a_seed_that_occurs_twice_have_all_its_edges() -> None:
    data = Data(num_nodes=5, edge_index=torch.tensor([[0, 1, 2, 3], [1, 2, 3, 4]]))
    seeds = NodeSamplerInput(None, torch.tensor([2, 2]))
    output = BidirectionalNeighborSampler(data, [-1]).sample_from_nodes(seeds)
    assert output.node.tolist() == [2, 2, 1, 3]
    edges = zip(output.row.tolist(), output.col.tolist(), output.edge.tolist(), strict=True)
    assert sorted(edges) == [(0, 3, 2), (1, 3, 2), (2, 0, 1), (2, 1, 1)]  # as in each of the directions
    assert output.num_sampled_edges == [4]


def test_a_direction_that_is_none_is_named() -> None:
    with pytest.raises(ValueError, match="sample_direction 'up': must be 'forward' or 'backward'"):
        NeighborSampler(plain(), [2], sample_direction="up")


@pytest.mark.parametrize("kind", ["backward", "both"])
def test_times_weights_and_negatives_go_with_every_direction(kind: str) -> None:
    data = plain()
    data.time, data.weight = torch.arange(25), (torch.arange(60) % 2).float()
    by: dict[str, Any] = {"time_attr": "time", "weight_attr": "weight"}
    sampler: NeighborSampler = BidirectionalNeighborSampler(data, [-1], **by)
    if kind == "backward":
        sampler = NeighborSampler(data, [-1], sample_direction="backward", **by)
    loader = LinkNeighborLoader(
        data, [-1], data.edge_index[:, :6], None, torch.full((6,), 15), neg_sampling="binary",
        time_attr="time", neighbor_sampler=sampler, batch_size=6,
    )  # fmt: skip
    (batch,) = loader
    assert batch.edge_label.tolist() == [1.0] * 6 + [0.0] * 6
    assert batch.edge_index.shape[1] > 0
    assert bool((batch.weight == 1).all())
    ends = data.edge_index[:, batch.e_id]
    assert torch.equal(ends, batch.n_id[batch.edge_index])
    seeds = batch.edge_label_index.unique()
    drawn = torch.ones(batch.num_nodes, dtype=torch.bool)
    drawn[seeds] = False
    assert bool((batch.time[drawn] <= 15).all())


def test_a_sampler_of_both_directions_takes_no_other_direction() -> None:
    with pytest.raises(ValueError, match="sample_direction backward: hops follow both directions"):
        BidirectionalNeighborSampler(plain(), [2], sample_direction="backward")
