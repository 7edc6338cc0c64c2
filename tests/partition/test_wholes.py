"""Arrays of all nodes follow the new numbering; splits keep the order of their seeds."""

from __future__ import annotations

from pathlib import Path

import torch

from khop.graph.folder import open_folder
from khop.partition.cut import Renumbering
from khop.partition.wholes import whole_arrays
from support.shop_folders import write_small_shop


def test_arrays_are_those_of_the_graph_by_new_ids(tmp_path: Path) -> None:
    folder = open_folder(write_small_shop(tmp_path / "shop"))
    assigned = {"user": torch.tensor([1, 0, 1, 0]).int(), "item": torch.tensor([0, 1, 0]).int()}
    numbers = Renumbering.of(assigned, 2)
    arrays = dict(whole_arrays(folder, numbers))
    for name in ("train", "test"):
        ids = arrays[f"nodes/item/splits/{name}.npy"]
        assert torch.equal(numbers.old_ids["item"][ids], folder.split(name)["item"])
    assert arrays["nodes/user/original_id.npy"].tolist() == [1, 3, 0, 2]
    assert arrays["nodes/item/original_id.npy"].tolist() == [7, 6, 5]  # the ids of the graph before
    assert arrays["nodes/item/y.npy"].tolist() == [0, 2, -1]
    assert "nodes/item/x.npy" not in arrays  # rows of features stay with their parts
    before = folder.csc(("user", "buys", "item")).degrees()
    assert torch.equal(arrays["edges/user__buys__item/degrees.npy"].long(), before[numbers.old_ids["item"]])
