"""Data and graphs become one another; what lies alike is not copied.

Data that RandomLinkSplit has split become a graph of the edges, and links where they are asked for.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData
from torch_geometric.transforms import RandomLinkSplit, ToUndirected

import khop
from khop.kernels.csc import Csc
from khop.pyg.outputs import EDGE, NODE
from pyg.pyg_cases import BUYS, plain, typed

Edge = tuple[int, int, int]


def sorted_plain() -> Data:
    data = plain()
    order = data.edge_index[1].sort(stable=True).indices
    data.edge_index = data.edge_index[:, order]
    data.edge_attr, data.edge_weight = data.edge_attr[order], data.edge_weight[order]
    return data


def edges(csc: Csc, *columns: torch.Tensor) -> list[tuple[object, ...]]:
    destinations = torch.repeat_interleave(torch.arange(csc.num_rows), csc.indptr.diff())
    listed = [csc.indices.tolist(), destinations.tolist(), *(column.tolist() for column in columns)]
    return sorted(zip(*map(lambda part: map(str, part), listed), strict=True))


def test_a_data_object_becomes_a_graph_with_its_columns_and_splits() -> None:
    data = plain()
    graph = khop.graph_from_pyg(data)
    assert graph.schema.node_types == (NODE,)
    assert graph.schema.edge_types == (EDGE,)
    assert set(graph.columns[NODE]) == {"x", "y"}
    assert graph.split_names == ("train",)
    assert torch.equal(graph.split("train")[NODE], data.train_mask.nonzero().view(-1))
    assert graph.schema.label_column() == (NODE, "y")
    sources, destinations = data.edge_index.tolist()
    expected = sorted(
        zip(map(str, sources), map(str, destinations), map(str, data.edge_weight.tolist()), strict=True)
    )
    assert edges(graph.csc(EDGE), graph.columns[EDGE]["edge_weight"]) == expected


def test_what_lies_alike_is_shared() -> None:
    data = sorted_plain()
    graph = khop.graph_from_pyg(data)
    assert graph.csc(EDGE).indices.data_ptr() == data.edge_index.data_ptr()
    back = khop.graph_to_pyg(graph)
    for name in ("x", "y"):
        assert graph.columns[NODE][name].data_ptr() == data[name].data_ptr() == back[name].data_ptr()
    for name in ("edge_attr", "edge_weight"):
        assert graph.columns[EDGE][name].data_ptr() == data[name].data_ptr() == back[name].data_ptr()


def test_a_folders_columns_are_the_data_objects(tmp_path: Path) -> None:
    """Mapped, whatever their size: nothing is read until a batch asks for it."""
    opened = khop.open_graph(khop.graph_from_pyg(typed()).save(tmp_path / "graph"))
    data = khop.graph_to_pyg(opened)
    for type_, of_type in opened.columns.items():
        for name, column in of_type.items():
            assert data[type_][name].data_ptr() == column.data_ptr()


def test_a_sorted_data_object_comes_back_as_it_was() -> None:
    data = sorted_plain()
    back = khop.graph_to_pyg(khop.graph_from_pyg(data))
    assert isinstance(back, Data)
    for name in ("x", "y", "edge_index", "edge_attr", "edge_weight", "train_mask"):
        assert torch.equal(back[name], data[name])
    assert back.num_nodes == data.num_nodes


def test_a_typed_object_comes_back_by_destination() -> None:
    data = typed()
    back = khop.graph_to_pyg(khop.graph_from_pyg(data))
    assert isinstance(back, HeteroData)
    assert back.node_types == data.node_types
    assert back.edge_types == data.edge_types
    assert back["tag"].num_nodes == 4
    order = data[BUYS].edge_index[1].sort(stable=True).indices
    assert torch.equal(back[BUYS].edge_index, data[BUYS].edge_index[:, order])
    assert torch.equal(back[BUYS].edge_attr, order)
    assert back["user", "likes", "tag"].edge_index.shape == (2, 0)


def test_a_mask_that_marks_no_node_is_left_out_with_a_warning(tmp_path: Path) -> None:
    data = plain()
    data.val_mask, data.test_mask = torch.zeros(25, dtype=torch.bool), torch.zeros(25, 2, dtype=torch.bool)
    data.test_mask[3, 1] = True
    with pytest.warns(UserWarning, match="does not mark any 'node' node: the split is omitted") as warned:
        graph = khop.graph_from_pyg(data)
    assert ["'val'" in str(one.message) or "'test.0'" in str(one.message) for one in warned] == [True, True]
    assert warned[0].filename == __file__
    saved = khop.open_graph(graph.save(tmp_path / "graph"))
    assert set(saved.split_names) == {"train", "test.1"}


@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8])
def test_a_mask_of_numbers_is_a_column_with_a_warning(dtype: torch.dtype) -> None:
    data = plain()
    data.train_mask = torch.zeros(25, dtype=dtype)
    said = f"attribute 'train_mask' of 'node' is {dtype}, not boolean: it becomes a column, not a split"
    with pytest.warns(UserWarning, match=said):
        graph = khop.graph_from_pyg(data)
    assert "train" not in graph.split_names
    assert "train_mask" in graph.columns["node"]


def test_masks_of_several_columns_are_several_splits() -> None:
    data = plain()
    data.val_mask = torch.arange(50).view(25, 2) % 3 == 0
    graph = khop.graph_from_pyg(data)
    assert graph.split_names == ("train", "val.0", "val.1")
    assert torch.equal(graph.split("val.1")[NODE], data.val_mask[:, 1].nonzero().view(-1))


@pytest.mark.parametrize("make", [plain, typed])
def test_a_saved_graph_is_the_same_graph(make: type, tmp_path: Path) -> None:
    graph = khop.graph_from_pyg(make())
    opened = khop.open_graph(graph.save(tmp_path / "graph"))
    assert opened.schema == graph.schema
    assert opened.split_names == graph.split_names
    for type_, of_type in graph.columns.items():
        for name, column in of_type.items():
            assert torch.equal(opened.columns[type_][name], column)
    for edge_type in graph.schema.edge_types:
        assert torch.equal(opened.csc(edge_type).indptr, graph.csc(edge_type).indptr)
        assert torch.equal(opened.csc(edge_type).indices.long(), graph.csc(edge_type).indices.long())
    again = khop.open_graph(opened.save(tmp_path / "again"))
    assert again.folder is not None
    assert opened.folder is not None
    assert again.folder.fingerprint == opened.folder.fingerprint


def batch_of(graph: khop.Graph, node_type: str, **settings: object) -> khop.Batch:
    sampler = khop.NeighborSampler(
        graph, [3, 2], edge_ids=True, expansion=khop.Expansion.SUBGRAPH, **settings
    )
    seeds = {node_type: torch.tensor([3, 8, 3])}
    columns = {t: list(of_type) for t, of_type in graph.columns.items() if of_type}
    return khop.Loader(sampler, seeds, batch_size=3, columns=columns).batch(0, 0)


def test_a_batch_becomes_a_data_object_that_shares_its_columns() -> None:
    data = plain()
    batch = batch_of(khop.graph_from_pyg(data), NODE)
    found = khop.batch_to_pyg(batch)
    assert isinstance(found, Data)
    assert found.x.data_ptr() == batch["x"].data_ptr()
    assert found.n_id.data_ptr() == batch.input_nodes.data_ptr()
    subgraph = batch.sample.subgraph
    assert subgraph is not None
    (adjacency,) = subgraph.adjacencies.values()
    assert adjacency.edge_ids is not None
    assert found.e_id.data_ptr() == adjacency.edge_ids.data_ptr()
    assert found.edge_attr.data_ptr() == adjacency.columns["edge_attr"].data_ptr()
    assert torch.equal(found.x, data.x[found.n_id])
    assert found.batch_size == 2
    assert found.n_id[found.seed_index].tolist() == [3, 8, 3]
    assert sum(found.num_sampled_nodes) == found.num_nodes
    assert sum(found.num_sampled_edges) == found.num_edges == found.edge_attr.shape[0]


def test_a_typed_batch_becomes_a_typed_data_object() -> None:
    data = typed()
    graph = khop.graph_from_pyg(data)
    found = khop.batch_to_pyg(batch_of(graph, "item"))
    assert isinstance(found, HeteroData)
    assert torch.equal(found["user"].x, data["user"].x[found["user"].n_id])
    ends = found[BUYS].edge_index
    assert ends.shape[1] > 0
    carried = data[BUYS].edge_index[:, found[BUYS].edge_attr]  # the attribute numbers the edges
    assert torch.equal(carried, torch.stack([found["user"].n_id[ends[0]], found["item"].n_id[ends[1]]]))


def test_weights_of_edges_and_losses_come_along() -> None:
    batch = batch_of(khop.graph_from_pyg(plain()), NODE)
    subgraph = batch.sample.subgraph
    assert subgraph is not None
    weighted = {t: replace(a, weight=a.indices / 2) for t, a in subgraph.adjacencies.items()}
    losses = khop.LossWeights({NODE: torch.tensor([1.0, 0.5, 2.0])}, 3.5)
    sample = replace(batch.sample, subgraph=replace(subgraph, adjacencies=weighted), loss_weights=losses)
    found = khop.batch_to_pyg(replace(batch, sample=sample))
    assert torch.equal(found.sampled_edge_weight, found.edge_index[0] / 2)  # beside a column edge_weight
    assert found.loss_weight.tolist() == [1.0, 0.5, 2.0]


def test_trees_and_directions_come_along() -> None:
    graph = khop.graph_from_pyg(plain())
    apart = khop.batch_to_pyg(batch_of(graph, NODE, trees="disjoint"))
    assert apart.batch[: apart.batch_size].tolist() == [0, 1, 2]
    both = khop.batch_to_pyg(batch_of(graph, NODE, output=khop.Output.BIDIRECTIONAL))
    assert both.reverse.dtype == torch.bool
    assert "num_sampled_edges" not in both
    assert not both.is_directed()


def of_one_type(tmp_path: Path, node_columns: dict[str, Any], edge_columns: dict[str, Any]) -> khop.Graph:
    ring = khop.EdgeTable(torch.arange(4), torch.arange(4).roll(1), edge_columns)
    node = khop.NodeTable(4, node_columns, {"train": torch.tensor([1])})
    return khop.open_graph(khop.write_graph(tmp_path / "g", {"n": node}, {"n to n": ring}))


def test_columns_of_nodes_and_edges_with_one_name_are_both_there(tmp_path: Path) -> None:
    nodes = {"year": torch.arange(4), "train_mask": torch.ones(4)}
    edges = {"year": torch.arange(4) + 10, "edge_index": torch.ones(4)}
    graph = of_one_type(tmp_path, nodes, edges)
    with pytest.warns(UserWarning, match="is another attribute of the data") as told:
        data = khop.graph_to_pyg(graph)
    assert [str(one.message).split(":")[0] for one in told] == [
        "column 'train_mask' of 'n' is 'node_train_mask'",
        "column 'year' of ('n', 'to', 'n') is 'edge_year'",
        "column 'edge_index' of ('n', 'to', 'n') is 'edge_edge_index'",
    ]
    assert torch.equal(data.year, nodes["year"])
    assert sorted(data.edge_year.tolist()) == [10, 11, 12, 13]
    assert data.train_mask.tolist() == [False, True, False, False]
    assert data.edge_index.shape == (2, 4)
    sampler = khop.NeighborSampler(graph, [2], expansion=khop.Expansion.SUBGRAPH, edge_ids=True)
    loader = khop.Loader(
        sampler,
        {"n": torch.arange(4)},
        batch_size=4,
        columns={"n": ["year"], "n to n": ["year", "edge_index"]},
    )
    with pytest.warns(UserWarning, match=r"column '\w+' of .* is 'edge_\w+': "):
        batch = khop.batch_to_pyg(loader.batch(epoch=0, step=0))
    assert torch.equal(batch.year, nodes["year"][batch.n_id])
    assert sorted(batch.edge_year.tolist()) == [10, 11, 12, 13]
    assert batch.edge_index.shape == (2, 4)


def test_quantized_columns_come_back_as_numbers(tmp_path: Path) -> None:
    x, w = torch.randn(4, 3), torch.randn(4, 2)
    graph = of_one_type(tmp_path, {"x": khop.quantize(x)}, {"w": khop.quantize(w)})
    data = khop.graph_to_pyg(graph)
    assert data.x.dtype == data.w.dtype == torch.float32
    assert torch.allclose(data.x, x, atol=x.abs().max().item() / 127)
    assert torch.allclose(data.w, w[graph.csc("n to n").indices], atol=w.abs().max().item() / 127)


def test_a_batch_of_blocks_is_refused() -> None:
    graph = khop.graph_from_pyg(plain())
    loader = khop.Loader(khop.NeighborSampler(graph, [2]), torch.tensor([1]), batch_size=1)
    with pytest.raises(ValueError, match="a block per layer"):
        khop.batch_to_pyg(loader.batch(0, 0))


def test_a_split_that_is_not_there_is_named() -> None:
    with pytest.raises(ValueError, match=r"no split 'test'; there are \['train'\]"):
        khop.graph_from_pyg(plain()).split("test")


def test_seed_columns_stand_beside_columns_of_all_nodes() -> None:
    graph = khop.graph_from_pyg(plain())
    sampler = khop.NeighborSampler(graph, [2], expansion=khop.Expansion.SUBGRAPH)
    seeds = torch.tensor([3, 8])
    own = khop.batch_to_pyg(
        khop.Loader(sampler, seeds, batch_size=2, columns=["x"], seed_columns=["y"]).batch(0, 0)
    )
    assert own.y.shape == (2,)
    both = khop.batch_to_pyg(
        khop.Loader(sampler, seeds, batch_size=2, columns=["y"], seed_columns=["y"]).batch(0, 0)
    )
    assert both.seed_y.shape == (2,)
    assert both.y.shape[0] == both.num_nodes


def test_what_to_undirected_added_is_known_as_the_reverse_and_split_with_its_type() -> None:
    data = HeteroData()
    data["user"].num_nodes, data["item"].num_nodes = 9, 7
    data["user", "buys", "item"].edge_index = torch.stack([torch.arange(40) % 9, torch.arange(40) % 7])
    data["user", "rev_buys", "user"].edge_index = torch.tensor([[0], [1]])  # no reverse of anything
    data = ToUndirected()(data)
    buys, back = ("user", "buys", "item"), ("item", "rev_buys", "user")
    graph = khop.graph_from_pyg(data)
    assert graph.schema.reverse(buys) == back
    assert graph.schema.reverse(("user", "rev_buys", "user")) is None
    split = khop.split_links(graph, buys, negatives=0)
    users_of = {tuple(pair) for pair in split.test_links.edges[buys].T.tolist()}
    csc = split.test.csc(back)
    users = torch.repeat_interleave(torch.arange(9), csc.indptr.diff()).tolist()
    assert users_of
    assert not users_of & set(zip(users, csc.indices.tolist(), strict=True))
    data[back].edge_index = data[back].edge_index[:, :-1]
    assert khop.graph_from_pyg(data).schema.reverse(buys) is None


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
def test_sparse_attributes_are_sparse_columns_and_come_back() -> None:
    dense = torch.zeros(4, 30)
    dense[1, 7], dense[3, 2] = 2.0, -1.0
    data = Data(x=dense.to_sparse_csr(), edge_index=torch.tensor([[0, 1, 2], [1, 2, 3]]))
    graph = khop.graph_from_pyg(data)
    assert graph.schema.column("node", "x").width == 30
    back = khop.graph_to_pyg(graph).x
    assert back.layout == torch.sparse_csr
    assert torch.equal(back.to_dense(), dense)
    model = khop.models.SAGE.for_graph(graph, 4, 1, target=["node"], outputs=2)
    batch = khop.Loader(khop.NeighborSampler(graph, [2]), torch.arange(4), 4, columns=["x"]).batch(0, 0)
    assert model(batch)["node"].shape == (4, 2)
    with pytest.raises(ValueError, match=r"attribute 'x' has layout torch.sparse_csr: loaders of khop.pyg"):
        next(iter(khop.pyg.NeighborLoader(data, num_neighbors=[2], batch_size=2)))
    with pytest.raises(ValueError, match="attribute 'x' is a tensor of layout sparse_coo"):
        khop.graph_from_pyg(Data(x=dense.to_sparse(), edge_index=data.edge_index))


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


@pytest.mark.core(2)
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


@pytest.mark.parametrize("kind", [Tensor.numpy, Tensor.tolist, tuple])
def test_arrays_and_lists_are_converted_and_names_are_left_out_with_a_warning(kind: Any) -> None:
    edges = torch.tensor([[0, 1, 2, 0], [1, 2, 0, 2]])
    data = Data(x=torch.rand(3, 2), edge_index=kind(edges), y=[1, 0, 1], names=["a", "b", "c"])
    with pytest.warns(UserWarning, match="attribute 'names' is left out: columns must be numeric") as caught:
        graph = khop.graph_from_pyg(data)
    assert len(caught) == 1
    again = khop.graph_to_pyg(graph)
    assert "names" not in again
    assert again.y.tolist() == [1, 0, 1]
    assert sorted(again.edge_index.t().tolist()) == sorted(edges.t().tolist())
