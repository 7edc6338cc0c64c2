"""Bad input, as users of torch_geometric make it: one sentence, when the loader is made."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from pandas import Series
from torch import Tensor, tensor
from torch_geometric.data import Data, HeteroData

import khop
from khop.pyg import LinkNeighborLoader, NeighborLoader, NeighborSampler
from pyg.pyg_cases import BOUGHT, BUYS, PAIRS, plain, some, typed
from pyg.test_stores import stores as stores_of

TYPES = r"there are \['user', 'item', 'tag'\]"
MASK = plain().train_mask


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        ("node", "input_nodes is 'node': the nodes of a Data have no types"),
        (("node", tensor([1])), "the nodes of a Data have no types"),
        (MASK.byte(), r"uint8 of shape \(25,\) with only 0 and 1 is neither ids nor a mask; .* by .bool\(\)"),
        (MASK.float(), "float32"),
        ([3.5, 1.0], "input_nodes: float32"),
        (torch.ones(5, dtype=torch.bool), r"input_nodes: a mask of shape \(5,\), but there are 25 nodes"),
        (torch.ones(25, 2, dtype=torch.bool), r"a mask of shape \(25, 2\)"),
        (tensor([[1, 2]]), r"int64 of shape \(1, 2\)"),
        (tensor([3, 25]), "input_nodes: there is no node 25; ids go from 0 to 24"),
        (tensor([3, -1]), "input_nodes: there is no node -1"),
    ],
)
def test_nodes_that_are_none_are_named(nodes: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        NeighborLoader(plain(), [2], nodes)


@pytest.mark.parametrize(
    "nodes",
    [[3, 1], (3, 1), np.array([3, 1]), tensor([3, 1], dtype=torch.int32), tensor([3, 1], dtype=torch.uint8)],
)
def test_ids_of_every_kind_are_nodes(nodes: Any) -> None:
    assert next(iter(NeighborLoader(plain(), [2], nodes, batch_size=2))).n_id[:2].tolist() == [3, 1]


@pytest.mark.core(2)
@pytest.mark.parametrize(
    "as_given", [Tensor.numpy, Tensor.tolist, lambda m: tuple(m.tolist()), Series, Tensor.bool]
)
def test_masks_of_every_kind_are_the_marked_nodes(as_given: Any) -> None:
    marked = MASK.nonzero().view(-1).tolist()
    batches = [*NeighborLoader(plain(), [2], as_given(MASK), batch_size=4)]
    assert [n for batch in batches for n in batch.n_id[: batch.batch_size].tolist()] == marked
    assert [n for batch in batches for n in batch.input_id.tolist()] == marked
    of_users = torch.arange(9) % 2 == 1
    pair, data = ("user", as_given(of_users)), typed()
    stores = stores_of(typed())
    for given, nodes in ((data, pair), (data, {"user": pair[1]}), (stores, pair), (data, [*pair])):
        (batch,) = NeighborLoader(given, [2], nodes, batch_size=9)
        assert batch["user"].n_id[: batch["user"].batch_size].tolist() == [1, 3, 5, 7]


@pytest.mark.parametrize("nodes", [[], MASK & False])
def test_no_nodes_are_no_batches(nodes: Any) -> None:
    assert list(NeighborLoader(plain(), [2], nodes)) == []


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        (None, r"input_nodes is None: the nodes of a HeteroData have types; .*" + TYPES),
        (tensor([0, 1]), r"input_nodes is int64 of shape \(2,\): the nodes of a HeteroData have types"),
        ("usr", "input_nodes of 'usr': not a node type; " + TYPES),
        (("usr", None), "input_nodes of 'usr': not a node type"),
        (("usr", tensor([0])), "input_nodes of 'usr': not a node type"),
        (("user", tensor([9])), "there is no node 9; ids go from 0 to 8"),
        (("item", torch.ones(9, dtype=torch.bool)), "there are 12 nodes"),
    ],
)
def test_typed_nodes_that_are_none_are_named(nodes: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        NeighborLoader(typed(), [2], nodes)


@pytest.mark.parametrize(
    ("links", "settings", "message"),
    [
        (tensor([[0], [25]]), {}, "edge_label_index, destinations: there is no node 25"),
        (tensor([[-1], [2]]), {}, "edge_label_index, sources: there is no node -1"),
        (PAIRS.t(), {}, r"edge_label_index is int64 of shape \(5, 2\): give int64 \(2, links\)"),
        (PAIRS[0], {}, r"int64 of shape \(5,\)"),
        (PAIRS.float(), {}, "edge_label_index is float32"),
        ([[0], [1, 2]], {}, "edge_label_index cannot be read as numbers"),
        (PAIRS, {"edge_label": torch.ones(4)}, r"edge_label is float32 of shape \(4,\) for 5 links"),
        (PAIRS, {"edge_label": [1, 0, 1, 1]}, r"edge_label is int64 of shape \(4,\) for 5 links"),
        (PAIRS, {"edge_label_time": torch.arange(5)}, "conflicting 'edge_label_time' and 'time_attr'"),
        (PAIRS, {"time_attr": "time"}, "conflicting 'edge_label_time' and 'time_attr'"),
        (
            PAIRS,
            {"time_attr": "time", "edge_label_time": torch.arange(4)},
            r"edge_label_time is int64 of shape \(4,\): give whole numbers, one for each of 5 inputs",
        ),
        (PAIRS, {"time_attr": "time", "edge_label_time": torch.rand(5)}, "edge_label_time is float32"),
        (PAIRS, {"neg_sampling": "both"}, "'both' is not a valid NegativeSamplingMode"),
        (PAIRS, {"neg_sampling_ratio": -1}, "'amount' needs to be positive"),
    ],
)
def test_links_that_are_none_are_named(links: Any, settings: dict[str, Any], message: str) -> None:
    data = plain()
    data.time = torch.arange(25)
    with pytest.raises(ValueError, match=message):
        LinkNeighborLoader(data, [2], links, **settings)


@pytest.mark.parametrize(
    ("links", "message"),
    [
        (None, "edge_label_index is None: the edges of a HeteroData have types; .*'buys'"),
        (PAIRS, "edge_label_index is int64 .*: the edges of a HeteroData have types"),
        (("user", "by", "item"), r"edge_label_index of \('user', 'by', 'item'\): not an edge type"),
        ((("user", "by", "item"), None), "not an edge type; there are"),
        ((("user", "by", "itm"), PAIRS), "'itm' is not a node type; " + TYPES),
        ((BUYS, tensor([[0], [12]])), "edge_label_index, destinations: there is no node 12"),
    ],
)
def test_typed_links_that_are_none_are_named(links: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LinkNeighborLoader(typed(), [2], links)


def test_links_need_not_be_of_a_type_that_carries_messages() -> None:
    likes = ("user", "might like", "item")
    batch = next(iter(LinkNeighborLoader(typed(), [2], (likes, BOUGHT), batch_size=4)))
    ends = batch[likes].edge_label_index
    assert torch.equal(batch["user"].n_id[ends[0]], BOUGHT[0])


@pytest.mark.parametrize(
    ("num_neighbors", "message"),
    [
        (5, "num_neighbors is 5: give a list with a number per hop"),
        ("15", "num_neighbors is '15'"),
        (["5"], "num_neighbors has '5': give whole numbers"),
        ([2.5], "num_neighbors has 2.5"),
        ([-2], "fanout -2 .*: must be 0 or more, or -1 for all neighbors"),
    ],
)
def test_fanouts_that_are_none_are_named(num_neighbors: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        NeighborLoader(plain(), num_neighbors)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({BUYS: None}, r"Missing number of neighbors for edge type '\('user', 'buys', 'item'\)'"),
        ({("user", "x", "item"): [2]}, "Not all edge types specified in 'num_neighbors' exist in the graph"),
        ({BUYS: [2, 2]}, "Number of hops must be the same across all edge types"),
    ],
)
def test_fanouts_by_edge_type_are_checked_in_torch_geometrics_words(changed: Any, message: str) -> None:
    fanouts = {**{edge_type: [2] for edge_type in typed().edge_types}, **changed}
    with pytest.raises(ValueError, match=message):
        NeighborLoader(typed(), {t: of_type for t, of_type in fanouts.items() if of_type}, "user")


@pytest.mark.parametrize(
    ("name", "value", "settings", "message"),
    [
        (None, None, {"weight_attr": "w"}, "The weight attribute 'w' is not an edge-level attribute"),
        ("w", -torch.ones(60), {"weight_attr": "w"}, "is -1.0 for edge 0: weights are finite numbers"),
        ("w", torch.ones(60) / 0, {"weight_attr": "w"}, "is inf for edge 0"),
        ("w", torch.ones(59), {"weight_attr": "w"}, "give one number for each of 60 edges"),
        ("w", torch.ones(60, 2), {"weight_attr": "w"}, r"float32 of shape \(60, 2\)"),
        (None, None, {"time_attr": "t"}, "The time attribute 't' is neither a node-level or edge-level"),
        (
            "t",
            torch.rand(25),
            {"time_attr": "t"},
            "attribute 't' of 'node' is float32 .*whole numbers",
        ),
        (
            "t",
            torch.arange(25),
            {"time_attr": "t", "temporal_strategy": "first"},
            "No valid temporal strategy",
        ),
        (
            "t",
            torch.arange(25),
            {"time_attr": "t", "input_time": tensor([1])},
            "input_time is int64 of shape",
        ),
        (None, None, {"input_time": torch.arange(25)}, "conflicting 'input_time' and 'time_attr'"),
        (None, None, {"subgraph_type": "both"}, "'both' is not a valid SubgraphType"),
        (None, None, {"is_sorted": True}, r"edge_index of \('node', 'to', 'node'\): is_sorted is set, but"),
    ],
)
def test_attributes_that_cannot_be_drawn_by_are_named(
    name: str | None, value: Tensor, settings: dict[str, Any], message: str
) -> None:
    data = plain()
    if name is not None:
        data[name] = value
    with pytest.raises(ValueError, match=message):
        NeighborLoader(data, [2], **settings)


def halves() -> HeteroData:
    data = HeteroData()
    data["user"].num_nodes = 3
    data[BUYS].edge_index = tensor([[0], [1]])
    return data


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (None, "Expected a 'Data', 'HeteroData', or a tuple of 'FeatureStore' and 'GraphStore'"),
        ([plain()], "Expected a 'Data'"),
        (
            Data(num_nodes=3, edge_index=tensor([[0, 5], [1, 2]])),
            "edge_index of .*: source id 5",
        ),
        (Data(num_nodes=3, edge_index=torch.ones(2, 2)), "edge_index of .* is float32"),
        (Data(num_nodes=3, edge_index=PAIRS.t()), r"is int64 of shape \(5, 2\): give int64 \(2, edges\)"),
        (
            Data(num_nodes=3, adj_t=torch.eye(3).to_sparse()),
            "adj_t of .* is a torch sparse tensor, .*: keep the edges as edge_index",
        ),
        (halves(), r"the number of 'item' nodes is unknown; set data\['item'\].num_nodes"),
    ],
)
def test_data_that_is_no_graph_is_named(data: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        NeighborSampler(data, [2])


def test_no_edges_are_a_graph() -> None:
    batch = next(iter(NeighborLoader(Data(x=torch.ones(5, 1)), [2, 2], batch_size=3)))
    assert (batch.num_nodes, batch.e_id.numel()) == (3, 0)


KINDS = pytest.mark.parametrize(
    "kind",
    [
        Tensor.numpy,
        Tensor.tolist,
        tuple,
        lambda values: np.asfortranarray(values.numpy()),
        lambda values: values.numpy().astype(values.numpy().dtype.newbyteorder(">")),
    ],
    ids=["array", "list", "tuple", "columns first", "big endian"],
)


def assert_same(ours: Any, expected: Any) -> None:
    assert ours.to_dict().keys() == expected.to_dict().keys()
    for storage, other in zip(ours.stores, expected.stores, strict=True):
        for name, value in other.items():
            if isinstance(value, str):
                assert storage[name] == value
            else:
                assert torch.equal(torch.as_tensor(storage[name]), torch.as_tensor(value)), name


@pytest.mark.core(2)
@KINDS
@pytest.mark.parametrize("workers", [0, 2])
def test_edges_times_and_weights_of_every_kind_are_those_of_tensors(kind: Any, workers: int) -> None:
    given = {"edge_index": plain().edge_index, "edge_time": some(60, 9, 5), "edge_w": some(60, 4, 3) + 1.0}
    settings: dict[str, Any] = {"time_attr": "edge_time", "weight_attr": "edge_w", "batch_size": 4}
    times = torch.full((25,), 7)
    batches = []
    for made, until in ((given, times), ({name: kind(value) for name, value in given.items()}, kind(times))):
        torch.manual_seed(3)
        data = Data(x=plain().x, **made)
        loader = NeighborLoader(data, [3, 2], input_time=until, num_workers=workers, **settings)
        batches.append([*loader])
        assert (data.edge_index is given["edge_index"]) == (made is given)  # the given data stay as they are
    for expected, ours in zip(*batches, strict=True):
        assert torch.equal(ours.edge_index, expected.edge_index)
        assert torch.equal(torch.as_tensor(ours.edge_time), expected.edge_time)
        assert torch.equal(ours.n_id, expected.n_id)


@pytest.mark.core(2)
@KINDS
def test_links_of_every_kind_are_those_of_tensors(kind: Any) -> None:
    def first(data: Any, links: Any, labels: Any) -> Any:
        torch.manual_seed(3)
        return next(iter(LinkNeighborLoader(data, [2], links, labels, batch_size=4)))

    labels = tensor([0, 1, 0, 1, 1])
    assert_same(first(plain(), kind(PAIRS), kind(labels)), first(plain(), PAIRS, labels))
    labels = labels[: BOUGHT.shape[1]]
    expected = first(typed(), (BUYS, BOUGHT), labels)
    for data in (typed(), stores_of(typed())):
        ours = first(data, (BUYS, kind(BOUGHT)), kind(labels))
        assert torch.equal(ours[BUYS].edge_label_index, expected[BUYS].edge_label_index)
        assert torch.equal(ours[BUYS].edge_label, expected[BUYS].edge_label)


@pytest.mark.core(2)
@KINDS
def test_typed_edges_of_every_kind_are_sampled_in_every_direction(kind: Any) -> None:
    def first(data: HeteroData, direction: str) -> Any:
        sampler = NeighborSampler(data, [-1, -1], sample_direction=direction)
        ids = ("item", [2, 7])
        return next(iter(NeighborLoader(data, [-1, -1], ids, batch_size=2, neighbor_sampler=sampler)))

    data = typed()
    for storage in data.edge_stores:
        storage.edge_index = kind(storage.edge_index)
    for direction in ("forward", "backward"):
        assert_same(first(data, direction), first(typed(), direction))


@pytest.mark.parametrize(
    ("edges", "message"),
    [
        ([[0, 1], [1]], "edge_index cannot be read as numbers"),
        ([["a"], ["b"]], "edge_index cannot be read as numbers"),
        (np.ones((2, 3)), "edge_index of .* is float64"),
        (np.ones(3, int), r"edge_index of .* is int64 of shape \(3,\): give int64 \(2, edges\)"),
        ("abc", "edge_index 'abc': give numbers"),
    ],
)
def test_edges_that_cannot_be_read_are_named(edges: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        NeighborLoader(Data(x=plain().x, edge_index=edges), [2])


@pytest.mark.parametrize("kind", [list, tuple, np.array, lambda names: np.array(names, object)])
@pytest.mark.parametrize("workers", [0, 2])
def test_names_of_nodes_are_cut_with_the_batch(kind: Any, workers: int) -> None:
    data, names = plain(), [f"node {n}" for n in range(25)]
    data.names = kind(names)
    for batch in NeighborLoader(data, [2], batch_size=10, num_workers=workers):
        assert type(batch.names) is type(data.names)
        assert [*batch.names] == [names[n] for n in batch.n_id.tolist()]
    shop = typed()
    shop["user"].names = kind(names[:9])
    batch = next(iter(NeighborLoader(shop, [2, 2], ("item", [2]), batch_size=1, num_workers=workers)))
    assert [*batch["user"].names] == [names[n] for n in batch["user"].n_id.tolist()]


def test_a_series_is_cut_with_the_batch() -> None:
    data = plain()
    data.names, data.sizes = Series([f"node {n}" for n in range(25)]), Series(range(25))
    batch = next(iter(NeighborLoader(data, [2], batch_size=10)))
    assert [*batch.names] == [f"node {n}" for n in batch.n_id.tolist()]
    assert batch.sizes.tolist() == batch.n_id.tolist()


TO = ("node", "to", "node")


@pytest.mark.parametrize("dtype", [np.uint16, np.uint32, np.uint64])
def test_unsigned_edges_are_those_of_int64(dtype: Any) -> None:
    data = plain()
    given = Data(x=data.x, edge_index=data.edge_index.numpy().astype(dtype))
    wanted = khop.graph_from_pyg(Data(x=data.x, edge_index=data.edge_index))
    assert khop.graph_from_pyg(given).csc(TO).indices.tolist() == wanted.csc(TO).indices.tolist()
    batch = next(iter(NeighborLoader(given, [-1], batch_size=25)))
    assert batch.edge_index.shape == data.edge_index.shape


def test_times_that_are_no_numbers_are_named_without_words_of_torch() -> None:
    data = plain()
    data.time = np.full(data.num_edges, "2020-01-01", "datetime64[D]")
    with pytest.raises(
        ValueError, match=r"time cannot be read as numbers.*they are datetime64\[D\]; give"
    ) as caught:
        NeighborLoader(data, [2], time_attr="time", input_nodes=[1], input_time=[1])
    assert "np.ndarray" not in str(caught.value)


@pytest.mark.core(2)
@pytest.mark.parametrize("kind", [np.array, tensor, Series, lambda fanouts: [np.int64(f) for f in fanouts]])
def test_fanouts_of_every_kind_are_those_of_a_list(kind: Any) -> None:
    def first(data: Any, fanouts: Any, nodes: Any, batch_size: Any) -> Any:
        torch.manual_seed(3)
        return next(iter(NeighborLoader(data, fanouts, nodes, batch_size=batch_size)))

    assert_same(first(plain(), kind([2, 3]), [1, 2], np.int64(2)), first(plain(), [2, 3], [1, 2], 2))
    of_types = {edge_type: kind([2, 3]) for edge_type in typed().edge_types}
    assert_same(
        first(typed(), of_types, ("item", [2, 7]), np.int32(2)), first(typed(), [2, 3], ("item", [2, 7]), 2)
    )
