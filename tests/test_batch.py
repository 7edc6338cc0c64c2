"""A batch is a value: it unwraps, moves, is measured, and says what it has not."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from khop import Adjacency, Batch, Block, Expansion, LinkRows, LossWeights, NeighborSampler, Sample, Seeds
from khop.batch import num_bytes
from khop.draw import DrawKey
from reference.hops import PlainGraph
from support.typed_shop import tensors

EDGE, BUYS = ("node", "to", "node"), ("user", "buys", "item")
TYPED = PlainGraph(
    {"user": 3, "item": 4},
    {("user", "buys", "item"): [(0, 0), (1, 0), (2, 3)], ("item", "by", "user"): [(0, 0), (3, 2)]},
)
PLAIN = PlainGraph({"node": 5}, {EDGE: [(1, 0), (2, 0), (3, 1), (4, 2), (0, 4)]})


def sample_of(graph: PlainGraph, expansion: Expansion = Expansion.LAYERED) -> Sample:
    node_type = next(iter(graph.counts))
    ids = torch.tensor([0, 2, 0])
    sampler = NeighborSampler(graph.opened(), [-1, -1], expansion=expansion, edge_ids=True)
    return sampler.sample(Seeds({node_type: ids}, {node_type: torch.arange(3)}), DrawKey(0))


def batch_of(graph: PlainGraph, expansion: Expansion = Expansion.LAYERED) -> Batch:
    sample = sample_of(graph, expansion)
    columns = {node_type: {"x": ids * 10} for node_type, ids in sample.nodes.items()}
    node_type = next(iter(sample.seed_index))
    seeds = {node_type: sample.nodes[node_type][sample.seed_index[node_type]]}
    return Batch(sample, seeds, columns, {node_type: {"y": seeds[node_type] + 1}}, 0, 0, 6, world_size=2)


def test_of_one_type_everything_unwraps() -> None:
    batch = batch_of(PLAIN)
    assert batch.seeds.tolist() == [0, 2, 0]
    assert batch.input_nodes.tolist() == batch.sample.nodes["node"].tolist()
    assert batch["x"].tolist() == (batch.input_nodes * 10).tolist()
    assert batch.seed_column("y").tolist() == [1, 3, 1]
    assert batch.input_nodes[batch.seed_index].tolist() == [0, 2, 0]
    block = batch.blocks[-1]
    assert (block.num_dst, block.num_src) == (2, 4)
    assert block.edge_index.tolist() == [[2, 1, 3], [0, 0, 1]]


def test_an_edge_index_names_source_and_destination_of_every_edge() -> None:
    adjacency = Adjacency(torch.tensor([0, 2, 2, 3]), torch.tensor([4, 0, 1], dtype=torch.int32), num_src=5)
    assert adjacency.edge_index.tolist() == [[4, 0, 1], [0, 0, 2]]
    assert adjacency.edge_index.dtype == torch.int64
    assert adjacency.num_dst == 3


def test_of_several_types_one_has_to_be_named() -> None:
    batch = batch_of(TYPED)
    assert batch["item", "x"].tolist() == (batch.sample.nodes["item"] * 10).tolist()
    assert batch.seed_column("y", "user").tolist() == batch.seed_column("y").tolist() == [1, 3, 1]
    with pytest.raises(ValueError, match=r"column 'x': node types \['user', 'item'\] have it"):
        batch["x"]
    with pytest.raises(ValueError, match=r"batch.input_nodes: the graph has 2"):
        _ = batch.input_nodes
    with pytest.raises(ValueError, match=r"block.adjacency: the graph has 2"):
        _ = batch.blocks[0].adjacency


@pytest.mark.parametrize(
    ("read", "message"),
    [
        (lambda batch: batch["z"], "column 'z': not in this batch; the loader's columns are"),
        (lambda batch: batch["user", "z"], "column 'z' of 'user': not in this batch"),
        (lambda batch: batch["shop", "x"], "column 'x' of 'shop': not in this batch"),
        (lambda batch: batch.seed_column("x"), "column 'x': not in this batch"),
        (lambda batch: batch.seed_column("y", "item"), "column 'y' of 'item'"),
    ],
)
def test_a_column_that_is_not_there_is_named(read: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read(batch_of(TYPED))


def test_a_column_of_one_type_needs_no_name() -> None:
    batch = batch_of(TYPED)
    only_items = Batch(batch.sample, batch.seed_nodes, {"item": {"w": torch.ones(2)}}, {}, 0, 0, 3)
    assert only_items["w"].tolist() == [1, 1]


def test_the_mean_over_ranks_of_global_means_is_the_mean_over_the_global_batch() -> None:
    batch = batch_of(PLAIN)
    mine, others = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([4.0, 5.0, 9.0])
    averaged = (batch.global_mean(mine) + batch.global_mean(others)) / 2
    assert averaged.item() == torch.cat([mine, others]).mean().item()


WEIGHTS, LOSSES = [0.5, 2.0, 0.0, 1.0, 3.0], [4.0, 1.0, 7.0, 2.0, 8.0]


@pytest.mark.parametrize("cut", [0, 2, 3, 5])
def test_weighted_means_of_ranks_average_to_that_of_the_global_batch(cut: int) -> None:
    """The two ranks have any share of the seeds, also none."""
    weights, losses = (torch.tensor(values, dtype=torch.float64) for values in (WEIGHTS, LOSSES))
    expected = float((weights * losses).sum() / weights.sum())
    ranks = [
        replace(
            batch_of(PLAIN),
            num_global_seeds=5,
            sample=replace(sample_of(PLAIN), loss_weights=LossWeights({"node": weights[mine]}, 6.5)),
        )
        for mine in (slice(0, cut), slice(cut, 5))
    ]
    of_ranks = (losses[:cut], losses[cut:])
    means = [rank.global_mean(own) for rank, own in zip(ranks, of_ranks, strict=True)]
    assert float(sum(means)) / 2 == pytest.approx(expected, rel=1e-15)
    sums = [
        rank.sample.weighted(own, rank.num_global_seeds).sum()
        for rank, own in zip(ranks, of_ranks, strict=True)
    ]
    assert float(sum(sums)) / 5 == pytest.approx(expected, rel=1e-15)


def test_pairs_of_a_link_share_its_weight() -> None:
    rows = LinkRows(torch.arange(6), torch.arange(6), torch.arange(2), pairs_per_link=3)
    sample = replace(
        sample_of(TYPED), links={BUYS: rows}, loss_weights=LossWeights({BUYS: torch.tensor([1.0, 3.0])}, 4.0)
    )
    batch = replace(batch_of(TYPED), sample=sample, num_global_seeds=2, world_size=1)
    losses = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0, 6.0], dtype=torch.float64)
    of_first, of_second = (1 + 3 + 4) / 3, (2 + 5 + 6) / 3  # its own pair, then those of its negatives
    assert float(batch.global_mean(losses)) == pytest.approx((of_first + 3 * of_second) / 4)


def test_wrong_loss_weights_are_named() -> None:
    for total in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="must be above 0, and equal on all ranks"):
            LossWeights({}, total)
    sample = replace(sample_of(PLAIN), loss_weights=LossWeights({"node": torch.ones(2)}, 2.0))
    with pytest.raises(ValueError, match=r"losses: 3 for 2 loss weights of \['node'\]"):
        replace(batch_of(PLAIN), sample=sample).global_mean(torch.ones(3))


def test_loss_weights_move_with_the_batch() -> None:
    sample = replace(sample_of(PLAIN), loss_weights=LossWeights({"node": torch.ones(3)}, 3.0))
    moved = replace(batch_of(PLAIN), sample=sample).to("meta").sample.loss_weights
    assert moved is not None
    assert moved.by_type["node"].is_meta


@pytest.mark.parametrize("expansion", list(Expansion))
@pytest.mark.parametrize("graph", [PLAIN, TYPED], ids=["plain", "typed"])
def test_moving_a_batch_moves_every_tensor_and_changes_none(graph: PlainGraph, expansion: Expansion) -> None:
    batch = batch_of(graph, expansion)
    moved = batch.to("meta")
    assert {tensor.device.type for tensor in tensors(moved)} == {"meta"}
    assert all(block.adjacencies[t].indices.is_meta for block in moved.blocks for t in block.adjacencies)
    copied = batch.map(Tensor.clone)
    for ours, copy in zip(tensors(batch), tensors(copied), strict=True):
        assert torch.equal(ours, copy)
        assert ours.data_ptr() != copy.data_ptr() or ours.numel() == 0


def test_the_blocks_of_a_moved_subgraph_are_views_of_it() -> None:
    copied = batch_of(PLAIN, Expansion.SUBGRAPH).map(Tensor.clone)
    assert copied.sample.subgraph is not None
    whole = copied.sample.subgraph.adjacencies[EDGE]
    assert all(block.adjacency.indices.data_ptr() == whole.indices.data_ptr() for block in copied.blocks)
    assert [block.num_dst for block in copied.blocks] == [4, 2]


def test_a_block_moves_with_its_edge_columns() -> None:
    weights = {"w": torch.ones(1)}
    adjacency = Adjacency(torch.tensor([0, 1]), torch.tensor([0], dtype=torch.int32), 1, columns=weights)
    block = Block({EDGE: adjacency}, {"node": 1}, {"node": 1}).to("meta")
    assert block.adjacency.columns["w"].is_meta


def test_the_bytes_of_a_batch_are_those_of_its_tensors_without_views() -> None:
    layered, subgraph = batch_of(PLAIN), batch_of(PLAIN, Expansion.SUBGRAPH)
    assert num_bytes(layered) == sum(tensor.nbytes for tensor in tensors(layered))
    assert num_bytes(subgraph) < num_bytes(layered)
