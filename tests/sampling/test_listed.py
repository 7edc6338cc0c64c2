"""Lists elsewhere keep the order of seeds by their numbers, and are fetched only where ids are needed."""

from __future__ import annotations

import torch
from torch import Tensor

from khop.sampling.listed import ListedNodes, Reference, fetched_seeds, ids_here, listed_seeds
from khop.sampling.seeds import SeedOrder


def listed(split: str, node_type: str, count: int) -> ListedNodes:
    def fetched() -> Tensor:
        return torch.arange(count) * 2

    def digested(reference: Reference) -> str:
        return f"digest of {reference}"

    return ListedNodes(split, node_type, count, fetched, digested)


def test_types_of_one_split_are_one_list_in_the_order_of_the_schema() -> None:
    nodes = {"item": listed("train", "item", 4), "user": listed("train", "user", 7)}
    found = listed_seeds(nodes, ("user", "item"), "age")
    assert found is not None
    assert found.counts == {"user": 7, "item": 4}
    assert found.reference == {"split": "train", "types": ["user", "item"], "times": "age"}
    assert found.digest() == f"digest of {found.reference}"


def test_the_nodes_of_one_type_are_a_list() -> None:
    found = listed_seeds(listed("val", "item", 4), ("user", "item"), None)
    assert found is not None
    assert found.counts == {"item": 4}


def test_other_seeds_are_no_list() -> None:
    one, other = listed("train", "item", 4), listed("val", "user", 4)
    for given in (
        {"item": one, "user": other},
        {"item": one, "user": torch.arange(3)},
        torch.arange(3),
        "all",
    ):
        assert listed_seeds(given, ("user", "item"), None) is None
    assert listed_seeds({"item": one}, ("user", "item"), {"item": torch.arange(4)}) is None
    assert listed_seeds({"item": one, "nope": one}, ("user", "item"), None) is None


def test_ids_are_fetched_where_they_are_needed() -> None:
    assert ids_here(listed("val", "item", 3)).tolist() == [0, 2, 4]
    assert torch.equal(fetched_seeds({"item": listed("val", "item", 3)})["item"], torch.tensor([0, 2, 4]))
    assert fetched_seeds("all") == "all"


def test_a_share_names_the_numbers_that_a_list_here_would_take() -> None:
    seeds = listed_seeds(listed("train", "item", 23), ("item",), None)
    assert seeds is not None
    found: list[int] = []
    for step in range(3):
        for rank in range(2):
            share = SeedOrder(seeds, 8, True, 5, rank, 2).share(1, step).listed
            assert share is not None
            found += share.order[share.mine].tolist()
    assert sorted(found) == list(range(23))
