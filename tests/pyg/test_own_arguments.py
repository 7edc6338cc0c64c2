"""A time window, int32 edges, and settings of processes where workers are threads."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch_geometric.data import Data

from khop.pyg import LinkNeighborLoader, NeighborLoader
from pyg.pyg_cases import plain


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
