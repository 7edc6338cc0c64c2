"""Input of a batch: each field arrives whole, and nothing of the batch before is left behind it."""

from __future__ import annotations

import torch

from khop import DrawKey, Seeds
from khop.kernels.triton.exclude_edges import NO_PAIR, pairs_of
from khop.sampling.on_device.inputs import EMPTY, Inputs
from support.triton_rows import DEVICE

BUYS = ("user", "buys", "item")


def seeds_of(users: list[int], items: list[int], first: int) -> Seeds:
    nodes = {"user": torch.tensor(users).long(), "item": torch.tensor(items).long()}
    positions = {
        "user": torch.arange(first, first + len(users)),
        "item": torch.arange(first + len(users), first + len(users) + len(items)),
    }
    return Seeds(nodes, positions, {t: ids * 10 for t, ids in nodes.items()})


def test_a_small_batch_after_a_full_one_leaves_nothing_of_it() -> None:
    inputs = Inputs({"user": 3, "item": 2}, {BUYS: (3, 50)}, DEVICE, trees=True, times=True)
    pairs = torch.tensor([[1, 2, 3], [4, 5, 6]])
    full, small = seeds_of([1, 2, 3], [4, 5], 20), seeds_of([9], [8], 30)
    inputs.write(full, DrawKey((1 << 64) - 1), 6, {BUYS: pairs})
    inputs.write(small, DrawKey(5), 7, {BUYS: pairs[:, :1]})
    assert (inputs.key.item(), inputs.stamp.item()) == (5, 7)
    assert inputs.seeds["user"].tolist() == [9, EMPTY, EMPTY]
    assert inputs.seeds["item"].tolist() == [8, EMPTY]
    assert inputs.seed_trees["user"].tolist() == [0, EMPTY, EMPTY]
    assert inputs.seed_trees["item"].tolist() == [1, EMPTY]
    assert inputs.trees is not None
    assert inputs.trees.until is not None
    assert inputs.trees.positions.tolist()[:2] == [30, 31]
    assert inputs.trees.until.tolist()[:2] == [90, 80]
    expected = [*pairs_of(pairs[:, :1], 50).tolist(), NO_PAIR, NO_PAIR]
    assert inputs.excluded[BUYS].pairs.tolist() == expected


def test_batches_that_exceed_a_field_do_not_fit() -> None:
    inputs = Inputs({"user": 3}, {BUYS: (1, 50)}, DEVICE, trees=False, times=False)
    pair = torch.tensor([[1], [4]])
    assert inputs.fits(seeds_of([1, 2, 3], [], 0), {BUYS: pair})
    assert not inputs.fits(seeds_of([1, 2, 3, 3], [], 0))
    assert not inputs.fits(seeds_of([1], [2], 0))
    assert not inputs.fits(seeds_of([1], [], 0), {BUYS: pair.repeat(1, 2)})
    assert not inputs.fits(seeds_of([1], [], 0), {("user", "sees", "item"): pair})
