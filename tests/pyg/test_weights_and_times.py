"""weight_attr, time_attr and temporal_strategy: no batch sees what is later than its seeds."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch_geometric.data import Data, HeteroData
from torch_geometric.sampler import NegativeSampling

from khop.pyg import LinkNeighborLoader, NeighborLoader
from pyg.pyg_cases import BUYS, plain, some, typed
from pyg.test_stores import sorted_typed, stores

NODES = torch.arange(19)


def timed(of: str) -> Data:
    data = plain()
    data.time = some(25, 40, 7) if of == "nodes" else some(60, 40, 7)
    return data


def times_of_edges(data: Data, batch: Data) -> torch.Tensor:
    return data.time[data.edge_index[0, batch.e_id]] if data.is_node_attr("time") else data.time[batch.e_id]


@pytest.mark.parametrize("of", ["nodes", "edges"])
@pytest.mark.parametrize("strategy", ["uniform", "last"])
@pytest.mark.parametrize("fanout", [-1, 2])
def test_nothing_is_later_than_its_seed(of: str, strategy: str, fanout: int) -> None:
    data = timed(of)
    limits = torch.arange(19) * 2
    batch = next(
        iter(
            NeighborLoader(
                data, [fanout] * 2, NODES, limits, time_attr="time", temporal_strategy=strategy, batch_size=19
            )
        )
    )
    trees = batch.batch[batch.edge_index[1]]
    assert torch.equal(trees, batch.batch[batch.edge_index[0]])
    assert batch.e_id.numel() > 0
    assert bool((times_of_edges(data, batch) <= limits[trees]).all())
    assert torch.equal(batch.seed_time, limits)
    assert torch.equal(data.edge_index[:, batch.e_id], batch.n_id[batch.edge_index])


@pytest.mark.parametrize("of", ["nodes", "edges"])
def test_all_that_is_early_enough_is_there(of: str) -> None:
    data = timed(of)
    limits = torch.arange(19) * 2
    batch = next(iter(NeighborLoader(data, [-1], NODES, limits, time_attr="time", batch_size=19)))
    times = data.time[data.edge_index[0]] if of == "nodes" else data.time
    early = times <= limits[data.edge_index[1]]
    assert batch.e_id.sort().values.tolist() == early.nonzero().view(-1).tolist()


@pytest.mark.parametrize("subgraph_type", ["directional", "induced"])
def test_all_neighbors_of_a_hop_with_draws_by_weight_with_replacement(subgraph_type: str) -> None:
    data = plain()
    data.w = (torch.arange(data.num_edges) % 3).float()
    options = {"weight_attr": "w", "replace": True, "subgraph_type": subgraph_type, "batch_size": 3}
    batch = next(iter(NeighborLoader(data, [-1, 2], torch.tensor([3, 8, 1]), **options)))
    assert torch.equal(data.edge_index[:, batch.e_id], batch.n_id[batch.edge_index])
    to_seeds = torch.isin(data.edge_index[1], batch.input_id) & (data.w > 0)
    assert bool(torch.isin(data.edge_index[0, to_seeds], batch.n_id).all())
    if subgraph_type == "induced":
        among = torch.isin(data.edge_index, batch.n_id).all(0)
        assert batch.e_id.sort().values.tolist() == among.nonzero().view(-1).tolist()


def test_the_last_are_the_latest() -> None:
    data = timed("edges")
    limits = torch.full((19,), 30)
    settings = {"time_attr": "time", "temporal_strategy": "last", "batch_size": 19}
    batch = next(iter(NeighborLoader(data, [2], NODES, limits, **settings)))
    for seed in range(19):
        taken = data.time[batch.e_id[batch.edge_index[1] == seed]]
        there = data.time[(data.edge_index[1] == seed) & (data.time <= 30)].sort().values
        assert taken.sort().values.tolist() == there[-2:].tolist()


def test_nodes_bring_their_own_times() -> None:
    data = timed("nodes")
    given = next(iter(NeighborLoader(data, [-1], NODES, data.time[NODES], time_attr="time", batch_size=19)))
    own = next(iter(NeighborLoader(data, [-1], NODES, time_attr="time", batch_size=19)))
    assert torch.equal(own.e_id, given.e_id)
    assert "seed_time" not in own
    with pytest.raises(ValueError, match="Seed time needs to be specified"):
        next(iter(NeighborLoader(timed("edges"), [-1], NODES, time_attr="time")))


def typed_times() -> HeteroData:
    data = typed()
    data["user"].time = some(9, 40, 7)
    data["item"].time = some(12, 40, 5)
    return data


def test_types_are_limited_each_by_its_own_times() -> None:
    data = typed_times()
    limits = torch.tensor([5, 25])
    loader = NeighborLoader(
        data, [-1, -1], ("item", torch.tensor([2, 7])), limits, time_attr="time", batch_size=2
    )
    batch = next(iter(loader))
    for node_type in ("user", "item"):
        reached = slice(batch[node_type].get("batch_size", 0), None)
        nodes = batch[node_type]
        assert bool((nodes.time[reached] <= limits[nodes.batch[reached]]).all())
    assert batch["tag"].n_id.numel() > 0


def test_a_time_on_both_sides_is_refused() -> None:
    data = typed_times()
    data[BUYS].time = torch.arange(20)
    with pytest.raises(ValueError, match="holds both node-level and edge-level information"):
        NeighborLoader(data, [2], "item", time_attr="time")


def test_stores_bring_times() -> None:
    data = sorted_typed()
    data["user"].time = torch.arange(9)
    data["item"].time = torch.zeros(12, dtype=torch.int64)
    for storage in data.edge_stores:
        source = storage._key[0]
        if "time" in data[source]:
            times = data[source].time[storage.edge_index[0]]
            keys = storage.edge_index[1] * 100 + times
            storage.edge_index = storage.edge_index[:, keys.sort(stable=True).indices]
    items, limits = ("item", torch.arange(12)), torch.full((12,), 4)
    pair = stores(data, is_sorted=True)
    batch = next(iter(NeighborLoader(pair, [-1], items, limits, time_attr="time", batch_size=12)))
    assert bool((batch["user"].time <= 4).all())
    assert batch["user"].n_id.numel() > 0


@pytest.mark.parametrize("mode", ["binary", "triplet"])
def test_negatives_are_no_later_than_their_links(mode: str) -> None:
    data = timed("nodes")
    pairs, limits = data.edge_index[:, :30], torch.arange(30) + 2
    settings = {"time_attr": "time", "neg_sampling": NegativeSampling(mode, 4), "batch_size": 30}
    batch = next(iter(LinkNeighborLoader(data, [2], pairs, edge_label_time=limits, **settings)))
    assert int(data.time.min()) <= 2
    if mode == "triplet":
        assert bool((batch.time[batch.dst_neg_index] <= limits[:, None]).all())
        assert torch.equal(batch.seed_time, limits)
    else:
        until = limits.repeat(5)
        assert torch.equal(batch.edge_label_time, until)
        assert bool((batch.time[batch.edge_label_index[:, 30:]] <= until[30:]).all())


def test_links_without_an_earlier_node_get_the_earliest() -> None:
    data = timed("nodes")
    settings: dict[str, Any] = {"time_attr": "time", "neg_sampling": "triplet", "batch_size": 3}
    loader = LinkNeighborLoader(
        data, [0], data.edge_index[:, :3], edge_label_time=torch.tensor([-1] * 3), **settings
    )
    batch = next(iter(loader))
    assert batch.time[batch.dst_neg_index].tolist() == [int(data.time.min())] * 3


def test_edges_of_weight_zero_are_never_drawn() -> None:
    data = plain()
    data.weight = (torch.arange(60) % 3).float()
    seen = [
        batch.e_id
        for _ in range(20)
        for batch in NeighborLoader(data, [2, 2], weight_attr="weight", batch_size=5)
    ]
    assert bool((data.weight[torch.cat(seen)] > 0).all())


def test_edges_are_drawn_by_weight() -> None:
    """Ten thousand seeds with the same five neighbors; also where edges come unsorted."""
    count, weights = 10_000, torch.tensor([1.0, 2.0, 0.0, 3.0, 4.0])
    order = some(5 * count, 5 * count, 1).argsort()
    sources, destinations = (
        torch.arange(5).repeat(count)[order],
        (torch.arange(count) + 5).repeat_interleave(5)[order],
    )
    data = Data(num_nodes=count + 5, edge_index=torch.stack([sources, destinations]), weight=weights[sources])
    torch.manual_seed(0)
    batch = next(
        iter(NeighborLoader(data, [1], torch.arange(5, count + 5), weight_attr="weight", batch_size=count))
    )
    share = torch.bincount(sources[batch.e_id], minlength=5) / count
    torch.testing.assert_close(share, weights / 10, atol=0.02, rtol=0)
    assert torch.equal(data.edge_index[:, batch.e_id], batch.n_id[batch.edge_index])


def test_weights_and_times_together() -> None:
    data = timed("edges")
    data.weight = (torch.arange(60) % 2).float()
    limits = torch.full((19,), 25)
    settings = {"time_attr": "time", "weight_attr": "weight", "batch_size": 19}
    batch = next(iter(NeighborLoader(data, [2], NODES, limits, **settings)))
    assert bool((data.time[batch.e_id] <= 25).all())
    assert bool((data.weight[batch.e_id] > 0).all())
    with pytest.raises(ValueError, match="strategy=LATEST"):
        NeighborLoader(data, [2], NODES, limits, temporal_strategy="last", **settings)
