"""The calls of a GPU's runtime: found in the loaded libraries, used by the pool of results.

Recorded launches make batch after batch, with other seeds and keys.
"""

from __future__ import annotations

import ctypes
import os
from dataclasses import dataclass

import pytest
import torch

from khop import DrawKey, Expansion, NeighborSampler, Seeds
from khop.kernels.memory import pinned_pool_bytes
from khop.loading.device.streams import CudaRecorder, _address, pin_pool, streams_of
from khop.loading.device.transfer import device_of
from khop.sampling.on_device.batch_plan import BatchPlan
from khop.sampling.on_device.device_batch import DeviceBatch, exact_sample
from khop.sampling.on_device.device_sampler import measured_capacities
from khop.sampling.on_device.type_nodes import counts_of
from khop.sampling.sampler import Trees
from support.random_graphs import as_seeds, ring
from support.recorders import recorder
from support.same_samples import assert_same
from support.torch_cuda import Card, Stream
from support.triton_rows import DEVICE


def test_without_the_runtime_nothing_is_pinned() -> None:
    asked: list[str] = []

    def missing(name: str) -> int | None:
        asked.append(name)
        return None if name.endswith("HostRegister") else 1

    before = pinned_pool_bytes()
    assert not pin_pool(0, missing)
    assert asked[0] in ("cudaSetDevice", "hipSetDevice")
    assert pinned_pool_bytes() == before


@pytest.mark.skipif(torch.version.cuda is not None, reason="where torch has no CUDA")
def test_a_runtime_that_is_not_loaded_is_not_found() -> None:
    assert not pin_pool(0)


def test_an_address_is_that_of_a_loaded_function() -> None:
    found = _address("getpid")
    assert found is not None
    assert ctypes.CFUNCTYPE(ctypes.c_int)(found)() == os.getpid()


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_copies_to_the_host_need_no_streams(device: str) -> None:
    assert streams_of(torch.device(device)) is None


@dataclass
class Machine:
    """What torch says about a machine."""

    cuda: str | None = "13.0"
    gpus: int = 0
    error: str | None = None

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def init() -> None:
            if self.error is not None:
                raise RuntimeError(self.error)

        monkeypatch.setattr(torch.version, "cuda", self.cuda)
        monkeypatch.setattr(torch.version, "hip", None)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: self.gpus > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: self.gpus)
        monkeypatch.setattr(torch.cuda, "init", init)


OLD = (
    "The NVIDIA driver on your system is too old (found version 11040). Please update your GPU driver by "
    "downloading and installing a new version"
)
NONE = "Found no NVIDIA driver on your system. Please check that you have an NVIDIA GPU"


@pytest.mark.parametrize(
    ("machine", "device", "words"),
    [
        (
            Machine(cuda=None),
            "cuda",
            "finds no CUDA device; .*install torch with CUDA; this build is",
        ),
        (Machine(error=OLD), "cuda", r"update the driver: torch says '.* too old \(found version 11040\)'$"),
        (
            Machine(error=NONE),
            "cuda",
            "install or update the driver: torch says 'Found no NVIDIA driver on your",
        ),
        (Machine(), "cuda", "check the driver by `nvidia-smi`, and the variable CUDA_VISIBLE_DEVICES"),
        (Machine(gpus=1), "cuda:3", 'torch finds 1 CUDA devices; give device="cpu", or cuda:0$'),
        (Machine(gpus=4), "cuda:4", "or one of the 4 GPUs of this machine, cuda:0 to cuda:3$"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_a_gpu_that_is_not_there_is_an_error_with_the_reason(
    monkeypatch: pytest.MonkeyPatch, machine: Machine, device: str, words: str
) -> None:
    machine.install(monkeypatch)
    with pytest.raises(ValueError, match=words):
        device_of(device)


def batch_of(size: int, number: int) -> tuple[Seeds, DrawKey]:
    ids = torch.randint(200, (size,), generator=torch.Generator().manual_seed(number))
    return as_seeds({"node": ids.tolist()}), DrawKey(number)


@pytest.mark.long
@pytest.mark.parametrize("trees", ["merged", "disjoint"])
@pytest.mark.parametrize("expansion", list(Expansion))
def test_a_recording_makes_the_batches_of_other_seeds_and_keys(expansion: Expansion, trees: Trees) -> None:
    sampler = NeighborSampler(ring(200, 9), [4, 3], expansion=expansion, trees=trees)
    batches = [batch_of(size, number) for number, size in enumerate([8, 5, 8, 0, 1])]
    plan = BatchPlan(sampler, measured_capacities(sampler, batches), DEVICE)
    made = [DeviceBatch(plan) for _ in range(2)]  # two in turn, one table
    recordings = [recorder()(batch.launch) for batch in made]
    for number, (seeds, key) in enumerate(batches):
        own = made[number % 2]
        own.write(seeds, key)
        recordings[number % 2]()
        counts = counts_of(own.cells.values)
        assert counts.overflowed != own.stamp
        assert_same(exact_sample(own, counts, seeds), sampler.sample(seeds, key))


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> Card:
    if torch.cuda.is_available():
        pytest.skip("scripts/gpu-contact refuses a recording on a GPU")
    made = Card()
    made.install(monkeypatch)
    return made


def test_a_wait_is_found_before_the_capture(card: Card) -> None:
    before = card.current

    def launches() -> None:
        card.launch()
        card.wait()

    recorder = CudaRecorder(Stream("recording"))  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match="called a synchronizing CUDA operation"):
        recorder.record(launches)
    assert not card.captures
    assert (card.current, card.sync_mode, card.generator.offset) == (before, 0, 0)


@pytest.mark.parametrize("is_invalid", [True, False])
def test_a_refused_capture_leaves_nothing_behind(card: Card, is_invalid: bool) -> None:
    before = card.current

    def launches() -> None:
        card.launch()
        if card.underway:
            card.is_invalid = is_invalid
            raise RuntimeError("not while capturing")

    recorder = CudaRecorder(Stream("recording"))  # type: ignore[arg-type]
    replay = recorder.record(card.launch)
    offset = card.generator.offset
    with pytest.raises(RuntimeError, match=r"previous error|not while capturing"):
        recorder.record(launches)
    assert card.current is before
    assert (card.underway, card.segments()) == (set(), [])
    assert (card.generator.offset, card.generator.is_captured) == (offset, False)
    with pytest.raises(AssertionError):  # the recordings of a recorder share its memory, and its end
        replay()


def test_recordings_share_a_pool_and_allow_calls_of_other_threads(card: Card) -> None:
    stream = Stream("recording")
    recorder = CudaRecorder(stream)  # type: ignore[arg-type]
    for replay in [recorder.record(card.launch), recorder.record(card.launch)]:
        replay()
    assert card.launched == [(stream, False), (stream, False), (stream, True)] * 2
    (first, mode), second = card.captures
    assert (first, mode) == second
    assert mode == "thread_local"
    assert card.uses == {first: 2}
