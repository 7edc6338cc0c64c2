"""The first batch of each epoch that kernels make is compared with the CPU's, and a lie ends the loop."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import pytest
import torch

import khop
from khop.batch import Batch, Sample
from khop.kernels.choice import Engine, forcing
from khop.loading.device import batch_slot, device_source
from khop.loading.device.batch_check import BatchCheck
from khop.loading.device.device_caching import DeviceColumns
from khop.loading.device.device_placement import DevicePlacement
from khop.loading.device.placed_stores import Conditions, placed_stores
from khop.loading.source import Drawn, request_of
from khop.testing.batch_source import GRAPH
from khop.training.recorded_steps import RecordedSteps
from support.delaying_streams import PromptStreams
from support.host_as_device import HostAsDevice
from support.recorded_runs import RecordedRun, as_device

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the CPU has no kernels beside a GPU")


@contextmanager
def cpu_as_gpu() -> Iterator[None]:
    with patch("khop.api.loader.streams_of", lambda device: PromptStreams()), forcing(Engine.TORCH):
        yield


def loader(topology: str = "device", check: str = "first") -> khop.Loader:
    request = DevicePlacement.of("cuda", topology, "device", "0", check)
    stores = placed_stores(GRAPH.topology, GRAPH.columns, request, HostAsDevice(), Conditions())
    sampler = khop.NeighborSampler(replace(GRAPH, stores=stores), [3, 2])
    seeds = {"user": torch.arange(8)}
    return khop.Loader(sampler, seeds, 4, columns=["x"], seed_columns=["age"], seed=7, shuffle=True)


def lying(step: int = 0, edges: bool = False) -> Callable[[Sample], Sample]:
    """A change of the batches of some step: another node, or another edge."""
    made: list[None] = []

    def change(sample: Sample) -> Sample:
        made.append(None)
        if len(made) != step + 1:
            return sample
        if not edges:
            return replace(sample, nodes={t: ids.flip(0) for t, ids in sample.nodes.items()})
        return sample.map(lambda tensor: tensor.flip(0) if tensor.dtype == torch.int32 else tensor)

    return change


@contextmanager
def source_that_lies(change: Callable[[Sample], Sample]) -> Iterator[None]:
    exact = device_source.exact_sample
    with patch.object(device_source, "exact_sample", lambda *given: change(exact(*given))):
        yield


def key_of(made: khop.Loader, epoch: int) -> str:
    return f"{request_of(made._order, epoch, 0).key.value:#x}"


def test_equal_batches_pass_and_no_thread_is_left() -> None:
    with cpu_as_gpu():
        made = loader()
        assert [len(list(made.epoch(epoch))) for epoch in range(2)] == [2, 2]
        next(made.epoch(2))  # left early
    assert "khop-check" not in {thread.name for thread in threading.enumerate()}


@pytest.mark.core(1)
@pytest.mark.parametrize(("edges", "part"), [(False, "nodes of "), (True, "edges of ")])
def test_a_lie_ends_the_loop_with_the_key_of_the_batch(edges: bool, part: str) -> None:
    with cpu_as_gpu():
        made = loader()
        list(made.epoch(0))
        words = (
            rf"the batch of epoch 1, step 0, key {key_of(made, 1)}: {part}.*differ from the CPU's; run khop"
        )
        with source_that_lies(lying(edges=edges)), pytest.raises(ValueError, match=words):
            list(made.epoch(1))


def test_rows_that_kernels_gather_after_draws_of_the_cpu_are_compared() -> None:
    add = DeviceColumns.add

    def added(columns: DeviceColumns, drawn: Drawn) -> Drawn:
        found = add(columns, drawn)
        of_types = {t: {n: rows + 1 for n, rows in of.items()} for t, of in found.columns.items()}
        return replace(found, columns=of_types)

    with cpu_as_gpu():
        made = loader("host")
        lies = patch.object(DeviceColumns, "add", added)
        with lies, pytest.raises(ValueError, match=r"key 0x\w+: rows of column 'x'"):
            list(made.epoch(0))


@pytest.mark.long
@pytest.mark.parametrize(("check", "step"), [("none", 0), ("first", 1)])
def test_other_batches_are_not_compared(check: str, step: int) -> None:
    with cpu_as_gpu():
        made = loader(check=check)
        with source_that_lies(lying(step)):
            assert len(list(made.epoch(0))) == 2


def test_labels_of_seeds_are_compared_without_other_columns() -> None:
    table = khop.SeedTable({"user": torch.arange(8)}, labels={"user": torch.arange(8)})
    with cpu_as_gpu():
        made = khop.Loader(loader().graph_sampler, table, 4)
        assert made._on_device is not None
        assert len(list(made.epoch(0))) == 2


def test_batches_that_the_cpu_makes_for_a_gpu_are_not_compared() -> None:
    """The edges are on the device, and its kernels cannot draw for the sampler."""
    request = DevicePlacement.of("cuda", "auto", "host")
    stores = placed_stores(GRAPH.topology, GRAPH.columns, request, HostAsDevice(), Conditions())
    assert stores.edges is not None
    sampler = khop.ShadowSampler(replace(GRAPH, stores=stores), [2], layers=1)
    with cpu_as_gpu(), pytest.warns(UserWarning, match="batches are sampled on the CPU"):
        made = khop.Loader(sampler, {"user": torch.arange(8)}, 4, columns=["x"])
    assert made._batches.check is None


def test_without_kernels_there_is_nothing_to_compare() -> None:
    made = khop.Loader(khop.NeighborSampler(GRAPH, [3, 2]), {"user": torch.arange(14)}, 4, columns=["x"])
    assert made._batches.check is None


@pytest.mark.long
def test_a_recorded_batch_that_lies_ends_the_run(tmp_path: Path) -> None:
    run = RecordedRun(tmp_path, check="first").with_(epochs=1)
    compared: list[Batch] = []
    received = BatchCheck.received

    def noted(check: BatchCheck, copied: Callable[[], Batch] | None) -> None:
        def copy() -> Batch:
            assert copied is not None
            compared.append(copied())
            return compared[-1]

        received(check, None if copied is None else copy)
        check.join()  # Triton's interpreter runs in one thread at a time

    with as_device(), patch.object(BatchCheck, "received", noted):
        trainer = run.trainer()
        trainer.fit()
        assert isinstance(trainer._steps, RecordedSteps)
    assert len(compared) == 1
    exact, change = batch_slot.exact_sample, lying()
    liar = replace(run, out=tmp_path / "liar")
    lies = patch.object(batch_slot, "exact_sample", lambda *given: change(exact(*given)))
    words = r"batch of epoch 0, step 0, key 0x\w+: nodes of"
    with (
        as_device(),
        patch.object(BatchCheck, "received", noted),
        lies,
        pytest.raises(ValueError, match=words),
    ):
        liar.trainer().fit()
    assert not (liar.out / "checkpoints" / "last").exists()
