"""Splits that overlap and edge types that are no reverses of each other are refused, with the value."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from khop.graph.inputs import Given, are_reverses, check_splits, checked_reverses, split_group

BUYS, BOUGHT = ("user", "buys", "item"), ("item", "bought", "user")
PAIRS = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), max_size=12)


def ids(name: str, values: list[int]) -> Given:
    return Given.of(np.array(values, np.int64), name)


def ends(pairs: list[tuple[int, int]]) -> tuple[Given, Given]:
    return ids("sources", [source for source, _ in pairs]), ids("destinations", [d for _, d in pairs])


@given(pairs=PAIRS, others=PAIRS, order=st.randoms(use_true_random=False))
def test_reverses_have_the_same_edges_in_any_order(
    pairs: list[tuple[int, int]], others: list[tuple[int, int]], order: object
) -> None:
    back = [(destination, source) for source, destination in pairs]
    order.shuffle(back)  # type: ignore[attr-defined]
    assert are_reverses(ends(pairs), ends(back))
    same = sorted(pairs) == sorted((destination, source) for source, destination in others)
    assert are_reverses(ends(pairs), ends(others)) is same


@given(
    by_split=st.dictionaries(
        st.sampled_from(["train", "val", "train.b", "val.b"]),
        st.lists(st.integers(0, 5), min_size=1, max_size=4),
        max_size=4,
    )
)
def test_splits_of_a_group_are_disjoint_and_have_each_node_once(by_split: Mapping[str, list[int]]) -> None:
    groups: dict[str, list[int]] = {}
    for name, nodes in by_split.items():
        groups.setdefault(split_group(name), []).extend(nodes)
    splits = {name: ids(name, nodes) for name, nodes in by_split.items()}
    if all(len(set(nodes)) == len(nodes) for nodes in groups.values()):
        check_splits(splits, 6, "nodes")
    else:
        with pytest.raises(ValueError, match=r"is in split .* too|already in the split"):
            check_splits(splits, 6, "nodes")


def test_an_id_outside_and_an_empty_split_are_refused() -> None:
    with pytest.raises(ValueError, match=r"train\[1\] is 6: there are 6 nodes"):
        check_splits({"train": ids("train", [0, 6])}, 6, "nodes")
    with pytest.raises(ValueError, match="train is empty"):
        check_splits({"train": ids("train", [])}, 6, "nodes")


def test_a_claimed_reverse_is_a_reverse_of_the_other_type_too() -> None:
    edges = {BUYS: ends([(0, 1), (2, 3)]), BOUGHT: ends([(3, 2), (1, 0)])}
    assert checked_reverses({BOUGHT: BUYS}, edges) == {BUYS: BOUGHT, BOUGHT: BUYS}
    with pytest.raises(ValueError, match="some edges have no reverse in it"):
        checked_reverses({BOUGHT: BUYS}, {**edges, BUYS: ends([(0, 1), (2, 2)])})
    with pytest.raises(ValueError, match="no such edge type"):
        checked_reverses({BOUGHT: ("user", "owns", "item")}, edges)
    with pytest.raises(ValueError, match="from destination to source"):
        checked_reverses({BUYS: BUYS}, edges)
