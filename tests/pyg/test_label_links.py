"""Data that RandomLinkSplit has split become a graph of the edges, and links where they are asked for."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData
from torch_geometric.transforms import RandomLinkSplit

import khop
from khop.pyg.typed_data import EDGE, NODE
from pyg.pyg_cases import BUYS, plain, typed

BACK = ("item", "rev_buys", "user")
SPLITS: list[dict[str, Any]] = [
    {"add_negative_train_samples": False},  # as many links of training as edges
    {},
    {"is_undirected": True},
    {"disjoint_train_ratio": 0.5},
    {"split_labels": True},
    {"key": "kind"},
    {"key": "kind", "split_labels": True, "add_negative_train_samples": False},
]


def split_of(data: Data | HeteroData, **settings: Any) -> list[Any]:
    torch.manual_seed(0)
    return list(RandomLinkSplit(num_val=0.1, num_test=0.1, **settings)(data))


@pytest.mark.parametrize("settings", SPLITS, ids=str)
def test_a_split_data_object_keeps_its_columns_and_no_links(settings: dict[str, Any]) -> None:
    expected = khop.graph_from_pyg(plain())
    for part in split_of(plain(), **settings):
        graph = khop.graph_from_pyg(part)
        assert set(graph.columns[NODE]) == set(expected.columns[NODE])
        assert set(graph.columns[EDGE]) == set(expected.columns[EDGE])
        order = part.edge_index[1].sort(stable=True).indices
        assert torch.equal(graph.columns[EDGE]["edge_weight"], part.edge_weight[order])


@pytest.mark.parametrize("settings", SPLITS[:1] + SPLITS[4:], ids=str)
def test_a_split_typed_object_keeps_its_columns_and_no_links(settings: dict[str, Any]) -> None:
    data = typed()
    expected = khop.graph_from_pyg(data)
    for part in split_of(data, edge_types=BUYS, rev_edge_types=BACK, **settings):
        graph = khop.graph_from_pyg(part)
        names, of_whole = ({t: set(of) for t, of in g.columns.items()} for g in (graph, expected))
        assert names == of_whole


def test_links_as_many_as_nodes_are_no_column_of_nodes() -> None:
    data = plain()
    data.edge_label_index = data.edge_index[:, :25]
    data.edge_label, data.edge_label_time = torch.ones(25), torch.arange(25)
    graph = khop.graph_from_pyg(data)
    assert set(graph.columns[NODE]) == {"x", "y"}


def test_a_transposed_array_is_left_out() -> None:
    data = plain()
    data.far_index, data.face = data.edge_index.flip(0), torch.zeros(3, 60, dtype=torch.int64)
    assert set(khop.graph_from_pyg(data).columns[EDGE]) == {"edge_attr", "edge_weight"}


@pytest.mark.parametrize("key", ["edge_label", "kind"])
@pytest.mark.parametrize("apart", [False, True])
def test_links_are_those_of_the_split(key: str, apart: bool) -> None:
    for part in split_of(plain(), key=key, split_labels=apart):
        links = khop.links_from_pyg(part, key)
        if apart:
            ends = torch.cat([part[f"pos_{key}_index"], part[f"neg_{key}_index"]], dim=1)
            labels = torch.cat([part[f"pos_{key}"], part[f"neg_{key}"]])
        else:
            ends, labels = part[f"{key}_index"], part[key]
        assert links.labels is not None
        assert torch.equal(links.edges[EDGE], ends)
        assert torch.equal(links.labels[EDGE], labels)


def test_links_of_a_typed_object_are_by_edge_type_with_times() -> None:
    (part, *_) = split_of(typed(), edge_types=BUYS, rev_edge_types=BACK)
    part[BUYS].edge_label_time = torch.arange(part[BUYS].edge_label.numel())
    links = khop.links_from_pyg(part)
    assert list(links.edges) == [BUYS]
    assert links.times is not None
    assert torch.equal(links.times[BUYS], part[BUYS].edge_label_time)


def test_a_loader_over_the_links_of_a_split_gives_their_labels() -> None:
    (part, *_) = split_of(plain())
    graph, links = khop.graph_from_pyg(part), khop.links_from_pyg(part)
    loader = khop.Loader(khop.LinkSampler(graph, [3]), links, batch_size=16, columns=["x"])
    labels: list[Tensor] = []
    for batch in loader.epoch(0):
        rows = batch.links[EDGE]
        assert rows.labels is not None
        labels.append(rows.labels)
    assert torch.equal(torch.cat(labels), part.edge_label)


def test_data_without_links_are_refused_with_the_remedy() -> None:
    with pytest.raises(ValueError, match="edge_label_index: no edge type of the data has it; split"):
        khop.links_from_pyg(plain())
    data = plain()
    data.pos_edge_label_index = data.neg_edge_label_index = data.edge_index
    data.pos_edge_label = torch.ones(60)
    with pytest.raises(ValueError, match="edge_label: some of the links have it and others do not"):
        khop.links_from_pyg(data)
