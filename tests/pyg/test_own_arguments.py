"""Seeds of several types, a time window, int32 edges, and settings of processes where workers are threads."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch_geometric.data import Data

from khop.pyg import LinkNeighborLoader, NeighborLoader
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


@pytest.mark.parametrize("workers", [0, 2])
def test_a_window_leaves_edges_at_most_so_old(workers: int) -> None:
    data = plain()
    data.time = torch.arange(60)
    seeds, until = torch.arange(19), torch.full((19,), 40)
    loader = NeighborLoader(
        data, [-1], seeds, until, time_attr="time", time_window=(10, -2), batch_size=19, num_workers=workers
    )
    (batch,) = loader
    assert sorted(batch.time.tolist()) == list(range(30, 39))
    links = LinkNeighborLoader(
        data, [-1], data.edge_index[:, 40:44], None, torch.full((4,), 40), time_attr="time",
        time_window=(10, 0), batch_size=4,
    )  # fmt: skip
    assert all(30 <= time <= 40 for batch in links for time in batch.time.tolist())
    with pytest.raises(ValueError, match=r"time_window .*: has no effect without times; give time_attr"):
        NeighborLoader(data, [2], time_window=(10, 0))


@pytest.mark.parametrize("subgraph_type", ["directional", "bidirectional", "induced"])
def test_int32_edges_stay_int32(subgraph_type: str) -> None:
    data = plain()
    wide = next(iter(NeighborLoader(data, [-1, -1], SEEDS, subgraph_type=subgraph_type, batch_size=3)))
    data.edge_index = data.edge_index.int()
    batch = next(iter(NeighborLoader(data, [-1, -1], SEEDS, subgraph_type=subgraph_type, batch_size=3)))
    assert batch.edge_index.dtype == torch.int32
    assert torch.equal(batch.edge_index.long(), wide.edge_index)
    assert batch.n_id.dtype == torch.int64


SEEDS = torch.tensor([3, 8, 1])


def test_many_threads_are_no_worker_processes() -> None:
    data = Data(edge_index=torch.tensor([[0], [1]]), num_nodes=2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(list(NeighborLoader(data, [1], num_workers=4096))) == 2


@pytest.mark.parametrize("workers", [0, 2])
def test_how_processes_start_has_no_effect_and_a_warning_says_so(workers: int) -> None:
    with pytest.warns(
        UserWarning, match="multiprocessing_context 'spawn': has no effect, workers are threads"
    ) as told:
        loader = NeighborLoader(plain(), [2], SEEDS, num_workers=workers, multiprocessing_context="spawn")
    assert told[0].filename == __file__
    assert len(list(loader)) == 3
