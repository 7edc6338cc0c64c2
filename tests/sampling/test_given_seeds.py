"""Seeds are taken as users have them: ids or a mask, as a tensor, an array or a list, or all nodes.

Lists elsewhere keep the order of seeds by their numbers, and are fetched only where ids are needed.
"""

from __future__ import annotations

import numpy as np
import pandas
import pytest
import torch
from torch import Tensor

from khop import Links, Loader, NeighborSampler
from khop.sampling.seeds import ListedNodes, NodeSeeds, Reference, SeedList, SeedOrder, ids_here
from support.small_graphs import one_type
from support.typed_shop import shop

SHOP = shop()  # 30 items and 40 users
MASK = torch.arange(30) % 7 == 3
IDS = [3, 10, 17, 24]


def ids_of(given: object) -> dict[str, Tensor]:
    found = SeedList.of(SHOP, given)  # type: ignore[arg-type]
    assert isinstance(found, NodeSeeds)
    return dict(found.nodes)


@pytest.mark.core(7)
@pytest.mark.parametrize(
    "given",
    [
        torch.tensor(IDS),
        torch.tensor(IDS, dtype=torch.int32),
        torch.tensor(IDS, dtype=torch.uint8),
        np.array(IDS),
        np.array(IDS, dtype=np.uint16),
        np.array([-1, *IDS])[1:],
        IDS,
        tuple(IDS),
        range(3, 30, 7),
        MASK,
        MASK.numpy(),
        MASK.tolist(),
        [np.int64(one) for one in IDS],
        tuple(MASK.tolist()),
        pandas.Series(IDS),
        pandas.Series(IDS, index=[9, 8, 7, 6], dtype="Int64"),
        pandas.Index(IDS),
        pandas.Series(MASK.tolist()),
        pandas.Series(MASK.tolist(), dtype="boolean"),
    ],
    ids=lambda given: f"{type(given).__name__} {getattr(given, 'dtype', '')}",
)
def test_ids_and_masks_of_every_kind_are_the_same_seeds(given: object) -> None:
    (found,) = ids_of({"item": given}).values()
    assert found.dtype == torch.int64
    assert found.tolist() == IDS


def test_a_read_only_array_is_read() -> None:
    given = np.array(IDS)
    given.flags.writeable = False
    assert ids_of({"item": given})["item"].tolist() == IDS


def test_all_nodes_are_those_of_a_type_or_of_every_type() -> None:
    assert {t: ids.tolist() for t, ids in ids_of({"user": "all"}).items()} == {"user": [*range(40)]}
    assert {t: ids.numel() for t, ids in ids_of("all").items()} == {"item": 30, "user": 40}


def test_duplicates_and_order_are_kept_and_types_are_in_the_order_of_the_schema() -> None:
    found = ids_of({"user": [5, 5, 1], "item": [2]})
    assert list(found) == [t for t in SHOP.schema.node_types if t in ("user", "item")]
    assert found["user"].tolist() == [5, 5, 1]


def test_a_homogeneous_graph_takes_seeds_without_a_type() -> None:
    graph = one_type(num_nodes=12).store
    for given in (torch.arange(12), [*range(12)], np.ones(12, bool), "all"):
        loader = Loader(NeighborSampler(graph, [1]), given, 5)
        assert torch.cat([batch.seeds for batch in loader]).tolist() == [*range(12)]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"item": MASK[:29]}, r"seeds of 'item': a mask of shape \(29,\), but there are 30 nodes"),
        ({"item": [0.0, 1.0]}, r"seeds of 'item': float32 of shape \(2,\); give a vector of whole numbers"),
        ({"item": torch.tensor(3)}, r"seeds of 'item': int64 of shape \(\); give a vector"),
        ({"item": [[0, 1]]}, r"seeds of 'item': int64 of shape \(1, 2\)"),
        (
            {"item": [[0, 1], [2]]},
            "seeds of 'item' cannot be read as numbers",
        ),
        ({"item": [30]}, "seeds of 'item': there is no node 30; ids go from 0 to 29"),
        ({"item": np.array([2**64 - 1], np.uint64)}, "seeds of 'item': there is no node"),
        ({"item": [2**70]}, "seeds of 'item' cannot be read as numbers"),
        ({"item": ["a"]}, "seeds of 'item' cannot be read as numbers"),
        ({"item": MASK.byte()}, r"seeds of 'item': uint8 of shape \(30,\) with only 0 and 1 is neither ids"),
        ({"item": MASK.byte().numpy()}, r"give a mask by .bool\(\) or .astype\(bool\), or ids as int64"),
        ({"item": torch.tensor([0, 1], dtype=torch.uint8)}, r"uint8 of shape \(2,\) with only 0 and 1"),
        ({"item": [True, 3]}, "seeds of 'item': truth values and numbers in one list"),
        ({"item": pandas.Series([1, None])}, "seeds of 'item': float64 of shape"),
        ({"item": pandas.Series([1, None], dtype="Int64")}, "seeds of 'item': "),
        ({"item": pandas.Series(["a"])}, "seeds of 'item' cannot be read as numbers"),
        ({"item": None}, "seeds of 'item' None: give node ids or a boolean mask"),
        ({"item": "every"}, "seeds of 'item' 'every': give node ids or a boolean mask"),
        ({"item": np.ma.array([1, 2], mask=[0, 1])}, "seeds of 'item' is a masked array, whose mask"),
        ({"item": torch.eye(3).to_sparse()}, "seeds of 'item' is a tensor of layout sparse_coo"),
        (
            {"item": torch.empty(3, dtype=torch.int64, device="meta")},
            "a tensor on the meta device",
        ),
        ("every", "seeds 'every': give node ids or a boolean mask"),
        (5, "seeds 5: give node ids"),
        ({"shop": "all"}, "seeds of 'shop': not a node type"),
        ([1, 2], r"seeds that are not given by node type: the graph has node types"),
    ],
)
def test_other_seeds_are_named(given: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ids_of(given)


def test_links_of_the_only_edge_type_are_one_tensor() -> None:
    graph = one_type(num_nodes=12).store
    ends, labels = torch.tensor([[0, 1, 2], [1, 2, 3]]), torch.tensor([1, 2, 1])
    (edge_type,) = graph.schema.edge_types
    given = Links(ends, labels, negatives=torch.tensor([[5], [6], [7]])).of_schema(graph.schema)
    assert given.counts == {edge_type: 3}
    assert given.labels == {edge_type: labels}
    with pytest.raises(ValueError, match="links given as one tensor: edge types: the graph has"):
        Links(torch.tensor([[0], [0]])).of_schema(SHOP.schema)


def listed(split: str, node_type: str, count: int) -> ListedNodes:
    def digested(reference: Reference) -> str:
        return f"digest of {reference}"

    return ListedNodes(split, {node_type: count}, lambda _: torch.arange(count) * 2, digested, SHOP.__eq__)


def test_types_of_one_split_are_one_list_in_the_order_of_the_schema() -> None:
    nodes = {"user": listed("train", "user", 7), "item": listed("train", "item", 4)}
    found = SeedList.of(SHOP, nodes, "age")
    assert list(found.counts.items()) == [(t, len(nodes[t])) for t in SHOP.schema.node_types if t in nodes]
    assert found.reference == {"split": "train", "types": [*found.counts], "times": "age"}
    assert found.digest() == f"digest of {found.reference}"


def test_the_nodes_of_one_type_are_a_list() -> None:
    for given in (listed("val", "item", 4), {"item": listed("val", "item", 4)}):
        found = SeedList.of(SHOP, given)
        assert found.reference == {"split": "val", "types": ["item"], "times": None}
        assert found.counts == {"item": 4}


def test_ids_of_other_lists_are_fetched() -> None:
    one, other = listed("train", "item", 4), listed("val", "user", 4)
    times = {"item": [1, 2, 3, 4]}
    for given, of_times in (
        ({"item": one, "user": other}, None),
        ({"item": one, "user": torch.tensor([0, 2, 4, 6])}, None),
        ({"item": one}, times),
        (one, times),
    ):
        found = SeedList.of(SHOP, given, of_times)
        assert isinstance(found, NodeSeeds)
        assert found.nodes.keys() == (given if isinstance(given, dict) else times).keys()
        assert all(ids.tolist() == [0, 2, 4, 6] for ids in found.nodes.values())
        assert found.reference is None
    assert ids_here(one).tolist() == ids_here(torch.tensor([0, 2, 4, 6])).tolist()
    with pytest.raises(ValueError, match="seeds of 'nope': not a node type"):
        SeedList.of(SHOP, {"item": one, "nope": one})


def test_a_share_names_the_numbers_that_a_list_here_would_take() -> None:
    seeds = SeedList.of(SHOP, listed("train", "item", 23))
    found: list[int] = []
    for step in range(3):
        for rank in range(2):
            share = SeedOrder(seeds, 8, True, 5, rank, 2).share(1, step).listed
            assert share is not None
            found += share.order[share.mine].tolist()
    assert sorted(found) == list(range(23))
