"""Seeds of several node types in one loader."""

from __future__ import annotations

import pytest
import torch

from khop.pyg import NeighborLoader
from pyg.pyg_cases import plain, typed


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("workers", [0, 2])
def test_a_mapping_gives_seeds_of_several_types(shuffle: bool, workers: int) -> None:
    data = typed()
    users, items = torch.tensor([4, 0, 7]), torch.arange(12) % 3 == 0
    loader = NeighborLoader(
        data,
        [2],
        {"user": users, "item": items, "tag": None},
        batch_size=4,
        shuffle=shuffle,
        num_workers=workers,
    )
    assert len(loader) == 3  # 3 + 4 + 4 seeds
    seen: dict[str, list[int]] = {"user": [], "item": [], "tag": []}
    for batch in loader:
        assert sum(batch[t].batch_size for t in seen) in (4, 3)
        for t, found in seen.items():
            ids = batch[t].n_id[: batch[t].batch_size]
            expected = users[batch[t].input_id] if t == "user" else batch[t].input_id
            assert ids.tolist() == expected.tolist()
            found += ids.tolist()
        assert torch.equal(batch["user"].x, data["user"].x[batch["user"].n_id])
    assert {t: sorted(ids) for t, ids in seen.items()} == {
        "user": [0, 4, 7], "item": [0, 3, 6, 9], "tag": [0, 1, 2, 3],
    }  # fmt: skip


def test_seeds_by_type_have_times_by_type() -> None:
    data = typed()
    data["user"].time, data["item"].time = torch.arange(9), torch.arange(12)
    data["tag"].time = torch.zeros(4, dtype=torch.int64)
    seeds, times = {"user": [8], "item": [2, 3]}, {"user": torch.tensor([5]), "item": torch.tensor([4, 9])}
    (batch,) = NeighborLoader(data, [-1], seeds, times, time_attr="time", batch_size=3)
    assert batch["user"].seed_time.tolist() == [5]
    assert batch["item"].seed_time.tolist() == [4, 9]
    limits = torch.tensor([5, 4, 9])
    for t in ("user", "item"):
        later = batch[t].time > limits[batch[t].batch]
        assert not bool(later[batch[t].batch_size :].any())


def test_seeds_by_type_that_do_not_fit_are_named() -> None:
    with pytest.raises(ValueError, match="input_nodes by node type are for a HeteroData"):
        NeighborLoader(plain(), [2], {"user": [1]})
    with pytest.raises(ValueError, match="empty mapping"):
        NeighborLoader(typed(), [2], {})
    with pytest.raises(ValueError, match="input_time: give a mapping"):
        NeighborLoader(typed(), [2], {"user": [1]}, torch.tensor([1]))
    with pytest.raises(ValueError, match="there is no node 90"):
        NeighborLoader(typed(), [2], {"user": [1], "item": [90]})
