"""torch_geometric.profile, and its loaders' own logs, on khop's loaders; what asks for a GPU is left out."""

from __future__ import annotations

import logging
from unittest import TestCase

import pytest
import torch
from torch_geometric import profile
from torch_geometric.nn import GraphSAGE
from torch_geometric.profile.profile import GPUStats
from torch_geometric.profile.profiler import Profiler

from khop.pyg import NeighborLoader
from pyg.pyg_cases import plain


def loader(**settings: object) -> NeighborLoader:
    return NeighborLoader(plain(), [4, 2], batch_size=8, **settings)


def test_batches_have_sizes() -> None:
    batch = next(iter(loader()))
    tensors = [value for value in batch.to_dict().values() if isinstance(value, torch.Tensor)]
    assert profile.get_data_size(batch) == sum(tensor.untyped_storage().nbytes() for tensor in tensors)
    model = GraphSAGE(3, 4, 2)
    assert profile.count_parameters(model) == sum(p.numel() for p in model.parameters())
    assert profile.get_model_size(model) > 0
    assert profile.get_cpu_memory_from_gc() >= batch.x.nbytes


@pytest.mark.parametrize("workers", [0, 2])
def test_epochs_are_timed_and_summed_up(workers: int) -> None:
    batches, stats = loader(num_workers=workers), []
    for _ in range(3):
        with profile.timeit(log=False) as timer:
            list(batches)
        stats.append(GPUStats(timer.duration, 0.0, 0.0, 0.0))
    assert 0 < profile.get_stats_summary(stats).time_mean <= max(of_epoch.time for of_epoch in stats)


def test_profileit_asks_for_a_gpu() -> None:
    """By its own message, which batches on a CPU reach."""
    train = profile.profileit("cuda")(lambda model, x, edge_index: model(x, edge_index))
    batch = next(iter(loader()))
    with pytest.raises(RuntimeError, match="non GPU devices"):
        train(GraphSAGE(3, 4, 2), batch.x, batch.edge_index)


@pytest.mark.core(1)
@pytest.mark.parametrize("workers", [0, 2])
def test_epochs_are_traced(workers: int, capsys: pytest.CaptureFixture[str]) -> None:
    model = GraphSAGE(3, 4, 2)
    with profile.torch_profile(export_chrome_trace=False):
        for batch in loader(num_workers=workers):
            model(batch.x, batch.edge_index)
    assert "aten::addmm" in capsys.readouterr().out


def test_layers_are_profiled_batch_by_batch() -> None:
    batch = next(iter(loader()))
    with Profiler(GraphSAGE(3, 4, 2), profile_memory=True) as profiler:
        profiler(batch.x, batch.edge_index)
    assert "convs" in profiler.get_trace()[0]


def test_workers_memory_is_logged() -> None:
    """`enable_memory_log` writes a line per worker: here a thread, of this process."""
    batches = loader(num_workers=2)
    before = batches.worker_init_fn
    with TestCase().assertLogs(level=logging.DEBUG) as logged, batches.enable_memory_log():
        assert len(list(batches)) == 4
    assert {"Worker 0", "Worker 1"} >= {record.message.split(" @ ")[0] for record in logged.records} != set()
    assert all("MB" in record.message for record in logged.records)
    assert getattr(batches.worker_init_fn, "func", batches.worker_init_fn) is before
