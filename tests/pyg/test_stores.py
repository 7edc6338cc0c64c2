"""Stores of torch_geometric's are loaded as its data objects are: those are stores too."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch_geometric.data import Data, HeteroData
from torch_geometric.data.graph_store import EdgeLayout
from torch_geometric.sampler import NodeSamplerInput
from torch_geometric.testing import MyFeatureStore, MyGraphStore

from khop.pyg import BidirectionalNeighborSampler, LinkNeighborLoader, NeighborLoader, NeighborSampler
from pyg.pyg_cases import BOUGHT, BUYS, plain, typed

Stores = tuple[Any, Any]


def stores(data: HeteroData, **attributes: Any) -> Stores:
    """Stores of the user's own, as torch_geometric's tests have them."""
    features, graph = MyFeatureStore(), MyGraphStore()
    for node_type in data.node_types:
        for name, value in data[node_type].items():
            if isinstance(value, torch.Tensor):
                features.put_tensor(value, group_name=node_type, attr_name=name, index=None)
    for edge_type in data.edge_types:
        size = tuple(data[end].num_nodes for end in (edge_type[0], edge_type[2]))
        index = tuple(data[edge_type].edge_index)
        graph.put_edge_index(index, edge_type=edge_type, layout="coo", size=size, **attributes)
    return features, graph


def sorted_typed() -> HeteroData:
    data = typed()
    for storage in data.edge_stores:
        storage.edge_index = storage.edge_index[:, storage.edge_index[1].sort(stable=True).indices]
    return data


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_of_stores_are_those_of_the_data(workers: int) -> None:
    data = sorted_typed()
    settings = {"num_neighbors": [-1, -1], "input_nodes": ("item", torch.tensor([2, 7])), "batch_size": 2}
    ours = next(iter(NeighborLoader(stores(data, is_sorted=True), num_workers=workers, **settings)))
    expected = next(iter(NeighborLoader(data, **settings)))
    assert isinstance(ours, HeteroData)
    for node_type in data.node_types:
        assert torch.equal(ours[node_type].n_id, expected[node_type].n_id)
    for edge_type in data.edge_types:
        assert torch.equal(ours[edge_type].edge_index, expected[edge_type].edge_index)
    assert torch.equal(ours["user"].x, expected["user"].x)
    assert ours["item"].batch_size == 2


def test_all_nodes_of_a_type_and_links_of_stores() -> None:
    data = sorted_typed()
    pair = stores(data)
    assert len(NeighborLoader(pair, [2], "user", batch_size=4)) == 3
    batch = next(iter(LinkNeighborLoader(pair, [2], (BUYS, BOUGHT), batch_size=4)))
    ends = batch[BUYS].edge_label_index
    assert torch.equal(batch["user"].n_id[ends[0]], BOUGHT[0])
    assert torch.equal(batch["item"].n_id[ends[1]], BOUGHT[1])


def test_batches_have_a_custom_class() -> None:
    class Mine(HeteroData):
        pass

    batch = next(iter(NeighborLoader(stores(typed()), [2], "user", custom_cls=Mine)))
    assert type(batch) is Mine


def plain_stores(data: Data, **attributes: Any) -> Stores:
    features, graph = MyFeatureStore(), MyGraphStore()
    features.put_tensor(data.x, group_name=None, attr_name="x", index=None)
    index = tuple(data.edge_index)
    graph.put_edge_index(index, edge_type=None, layout="coo", size=(25, 25), **attributes)
    return features, graph


def test_stores_without_types_give_data() -> None:
    data = plain()
    order = data.edge_index[1].sort(stable=True).indices
    data = Data(x=data.x, edge_index=data.edge_index[:, order])
    settings = {"num_neighbors": [-1], "input_nodes": torch.tensor([3, 8]), "batch_size": 2}
    ours = next(iter(NeighborLoader(plain_stores(data, is_sorted=True), **settings)))
    expected = next(iter(NeighborLoader(data, **settings)))
    assert torch.equal(ours.edge_index, expected.edge_index)
    assert torch.equal(ours.x, expected.x)
    assert ours.batch_size == 2


def test_bad_stores_are_named() -> None:
    with pytest.raises(NotImplementedError, match="'weight_attr' argument not yet supported"):
        NeighborLoader(stores(typed()), [2], "user", weight_attr="w")
    with pytest.raises(ValueError, match="Temporal sampling requires that edges are sorted by destination"):
        NeighborLoader(stores(typed()), [2], "user", time_attr="time")
    features, graph = stores(sorted_typed(), is_sorted=True)
    with pytest.raises(ValueError, match="did not find any temporal data"):
        NeighborLoader((features, graph), [2], "user", time_attr="time")
    by_source = (torch.arange(13).clamp(max=9), torch.zeros(9, dtype=torch.int64))
    edge_type = ("item", "seen by", "user")
    graph.put_edge_index(by_source, edge_type=edge_type, layout=EdgeLayout.CSR, size=(12, 9))
    with pytest.raises(ValueError, match="stored in either COO or CSC layout"):
        NeighborLoader((features, graph), [2], "user", time_attr="time")


@pytest.mark.parametrize("name", ["time", "when"])
def test_stores_without_types_have_times_of_nodes_or_of_edges(name: str) -> None:
    """Of nodes where the attribute is called "time", as torch_geometric has it."""
    data = plain()
    times = torch.arange(25) if name == "time" else torch.arange(60) % 20
    of_edges = times[data.edge_index[0]] if name == "time" else times
    order = (data.edge_index[1] * 100 + of_edges).argsort(stable=True)
    data.edge_index, of_edges = data.edge_index[:, order], of_edges[order]
    features, graph = plain_stores(data, is_sorted=True)
    values = times if name == "time" else of_edges
    features.put_tensor(values, group_name=None, attr_name=name, index=None)
    limits = torch.arange(19)
    loader = NeighborLoader((features, graph), [-1], limits, limits, time_attr=name, batch_size=19)
    taken = next(iter(loader)).e_id
    early = (of_edges <= data.edge_index[1]).nonzero().view(-1)
    assert taken.sort().values.tolist() == early.tolist()


def test_times_of_nodes_and_of_edges_are_not_mixed() -> None:
    data = sorted_typed()
    features, graph = stores(data, is_sorted=True)
    features.put_tensor(torch.arange(9), group_name="user", attr_name="time", index=None)
    features.put_tensor(torch.arange(20), group_name=BUYS, attr_name="time", index=None)
    with pytest.raises(ValueError, match="'time' for both node-level and edge-level types"):
        NeighborLoader((features, graph), [2], "user", time_attr="time")


def of_sampler(kind: Any, given: Any, nodes: Any, **settings: Any) -> Any:
    sampler = kind(given, [-1, -1], **settings)
    return next(iter(NeighborLoader(given, [-1, -1], nodes, batch_size=2, neighbor_sampler=sampler)))


def ends_of(sources: Any, destinations: Any, edge_index: Any) -> list[tuple[int, int]]:
    return sorted(zip(sources[edge_index[0]].tolist(), destinations[edge_index[1]].tolist(), strict=True))


@pytest.mark.parametrize("is_sorted", [True, False])
@pytest.mark.parametrize(
    ("kind", "settings"),
    [(NeighborSampler, {"sample_direction": "backward"}), (BidirectionalNeighborSampler, {})],
    ids=["backward", "both"],
)
def test_stores_are_sampled_in_every_direction_as_the_data(
    kind: Any, settings: dict[str, Any], is_sorted: bool
) -> None:
    data = sorted_typed()
    ours = of_sampler(kind, stores(data, is_sorted=is_sorted), ("user", torch.tensor([2, 7])), **settings)
    expected = of_sampler(kind, data, ("user", torch.tensor([2, 7])), **settings)
    assert any(expected[t].edge_index.numel() for t in data.edge_types if t[0] == "user" != t[2])
    for t in data.edge_types:
        of_type = (ours[t[0]].n_id, ours[t[2]].n_id, ours[t].edge_index)
        assert ends_of(*of_type) == ends_of(expected[t[0]].n_id, expected[t[2]].n_id, expected[t].edge_index)
        if is_sorted:  # else torch_geometric's conversion keeps no order among edges of one destination
            assert torch.equal(ours[t].edge_index, expected[t].edge_index)
    assert torch.equal(ours["user"].x, data["user"].x[ours["user"].n_id])
    whole = plain()
    order = whole.edge_index[1].sort(stable=True).indices
    whole = Data(x=whole.x, edge_index=whole.edge_index[:, order])
    nodes = torch.tensor([3, 8])
    one = of_sampler(kind, plain_stores(whole, is_sorted=is_sorted), nodes, **settings)
    same = of_sampler(kind, whole, nodes, **settings)
    assert ends_of(one.n_id, one.n_id, one.edge_index) == ends_of(same.n_id, same.n_id, same.edge_index)
    assert torch.equal(one.x, whole.x[one.n_id])


@pytest.mark.core(1)
@pytest.mark.parametrize("layout", ["coo", "csc", "csr"])
def test_backward_edges_of_stores_are_those_of_torch_geometrics_csr(layout: str) -> None:
    data = plain()
    features, graph = MyFeatureStore(), MyGraphStore()
    features.put_tensor(data.x, group_name=None, attr_name="x", index=None)
    graph.put_edge_index(tuple(data.edge_index), edge_type=None, layout="coo", size=(25, 25))
    if layout != "coo":
        row, col, _ = getattr(graph, layout)()
        graph = MyGraphStore()
        graph.put_edge_index((row, col), edge_type=None, layout=layout, size=(25, 25))
    sampler = NeighborSampler((features, graph), [-1], sample_direction="backward")
    rows, columns, permutation = graph.csr()
    for node in range(25):
        out = sampler.sample_from_nodes(NodeSamplerInput(None, torch.tensor([node])))
        reached = out.node[out.col]
        at = slice(int(rows[node]), int(rows[node + 1]))
        assert reached.sort().values.tolist() == columns[at].sort().values.tolist()
        assert out.node[out.row].tolist() == [node] * reached.numel()
        ids = out.edge if sampler.edge_permutation is None else sampler.edge_permutation[out.edge]
        expected = torch.arange(columns.numel()) if permutation is None else permutation
        assert ids.sort().values.tolist() == expected[at].sort().values.tolist()


def test_times_of_stores_hold_in_every_direction() -> None:
    data = sorted_typed()
    for node_type in data.node_types:
        data[node_type].time = torch.arange(data[node_type].num_nodes)
    for storage in data.edge_stores:  # by destination, then by the time of the source
        sources = storage.edge_index[0].argsort(stable=True)
        by_time = storage.edge_index[:, sources]
        storage.edge_index = by_time[:, by_time[1].argsort(stable=True)]
    nodes, seeds = ("user", torch.tensor([2, 7])), torch.tensor([5, 5])
    for kind, settings in (
        (NeighborSampler, {"sample_direction": "backward"}),
        (BidirectionalNeighborSampler, {}),
    ):
        batches = []
        for given in (stores(data, is_sorted=True), data):
            sampler = kind(given, [2, 2], time_attr="time", temporal_strategy="last", **settings)
            loader = NeighborLoader(
                given, [2, 2], nodes, seeds, time_attr="time", batch_size=2, neighbor_sampler=sampler
            )
            batches.append(next(iter(loader)))
        ours, expected = batches
        for node_type in data.node_types:
            assert torch.equal(ours[node_type].n_id, expected[node_type].n_id)
            drawn = ours[node_type].n_id[2 if node_type == "user" else 0 :]
            assert bool((data[node_type].time[drawn] <= 5).all())


def test_a_sampler_says_whether_its_graph_has_types() -> None:
    for given, is_hetero in (
        (plain(), False),
        (typed(), True),
        (plain_stores(plain()), False),
        (stores(typed()), True),
    ):
        assert NeighborSampler(given, [2]).is_hetero is is_hetero
