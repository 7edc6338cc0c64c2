"""On a GPU: batches of every placement are the CPU's, and nothing waits that need not."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

import khop
from khop.kernels.memory import pinned_pool_bytes, pinned_results, pooled
from khop.loading.device.device_memory import CudaMemory
from khop.loading.device.device_placement import StorePlace
from khop.loading.device.streams import CudaStreams
from khop.loading.device.transfer import Transfer
from support.small_typed_folders import write_typed_graph

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="without a GPU"),
]
TOPOLOGY = [StorePlace.DEVICE, StorePlace.PINNED, StorePlace.HOST]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_typed_graph(tmp_path_factory.mktemp("graph") / "g", renumbered=True)


def loader(graph: khop.Graph, rule: object = None, device: str | None = None) -> khop.Loader:
    settings = {} if rule is None else {"rule": rule}
    sampler = khop.NeighborSampler(graph, [3, 2], **settings)  # type: ignore[arg-type]
    seeds = {"user": torch.arange(0, 300, 7), "item": torch.arange(20)}
    times = {t: torch.full((ids.numel(),), 7000) for t, ids in seeds.items()}
    return khop.Loader(
        sampler,
        seeds,
        25,
        columns=["x"],
        seed_columns=["age"],
        seed_times=times if isinstance(rule, khop.Temporal) else None,
        shuffle=True,
        device=device,
    )


def assert_same(found: Iterator[khop.Batch], wanted: Iterator[khop.Batch]) -> None:
    from support.typed_shop import tensors  # collection needs no package of a graph

    count = 0
    for ours, theirs in zip(found, wanted, strict=True):
        pairs = list(zip(tensors(ours), tensors(theirs), strict=True))
        assert all(a.device.type == "cuda" and a.dtype == b.dtype for a, b in pairs)
        assert all(torch.equal(a.cpu(), b) for a, b in pairs)
        count += 1
    assert count > 1


@pytest.mark.parametrize("columns", list(StorePlace))
@pytest.mark.parametrize("topology", TOPOLOGY)
@pytest.mark.parametrize("cache", [0, "30%"])
def test_batches_of_every_placement_are_those_of_the_cpu(
    folder: Path, topology: str, columns: str, cache: int | str
) -> None:
    graph = khop.open_graph(folder)
    placed = graph.on("cuda", topology=topology, columns=columns, cache=cache)
    assert_same(loader(placed).epoch(1), loader(graph).epoch(1))


@pytest.mark.parametrize(
    ("kind", "column"), [("Weighted", "weight"), ("Temporal", "time"), ("TopK", "weight")]
)
@pytest.mark.parametrize("topology", TOPOLOGY[:2])
def test_other_rules_draw_as_on_the_cpu(folder: Path, topology: str, kind: str, column: str) -> None:
    rule = getattr(khop, kind)(column)
    graph = khop.open_graph(folder)
    placed = graph.on("cuda", topology=topology, columns="pinned")
    assert_same(loader(placed, rule).epoch(0), loader(graph, rule).epoch(0))


def test_batches_of_the_cpu_are_copied_unchanged_while_the_consumer_works(folder: Path) -> None:
    graph = khop.open_graph(folder)
    assert_same(loader(graph, device="cuda").epoch(0), loader(graph).epoch(0))


def pinned(shape: tuple[int, ...]) -> Tensor:
    with pinned_results():
        return pooled(shape, torch.int64)


class Several:
    """A value of several tensors."""

    def __init__(self, found: list[Tensor]) -> None:
        self.tensors = found

    def map(self, change: object) -> Several:
        return Several([change(tensor) for tensor in self.tensors])  # type: ignore[operator]


def test_memory_is_not_reused_before_a_late_consumer_has_read_it() -> None:
    """The consumer's stream is kept busy, while copies go on and batches die."""
    transfer = Transfer(CudaStreams(torch.device("cuda")))
    busy, results = torch.randn(4096, 4096, device="cuda"), []
    for number in range(60):
        block = pinned((1 << 20,)).fill_(number)
        sent, arrival = transfer.send(Several([block[: 1 << 19], block[1 << 19 :]]))
        del block
        for _ in range(10):
            busy = (busy @ busy).clamp(-1, 1)
        arrival.wait()
        results.append(torch.stack([tensor.amin() for tensor in sent.tensors] + [sent.tensors[0].amax()]))
        del sent, arrival
    found = torch.stack(results).cpu()
    assert torch.equal(found, torch.arange(60)[:, None].expand(60, 3))


def test_the_pool_pins_each_block_once() -> None:
    CudaStreams(torch.device("cuda"))
    first = pinned((1 << 20,))
    assert first.is_pinned()
    assert not pooled((1 << 20,), torch.int64).is_pinned()
    usage, address = pinned_pool_bytes(), first.data_ptr()
    del first
    again = pinned((1 << 20,))
    assert (again.data_ptr(), pinned_pool_bytes()) == (address, usage)


def test_sending_and_arriving_do_not_wait() -> None:
    transfer = Transfer(CudaStreams(torch.device("cuda")))
    block = pinned((1 << 20,)).fill_(3)
    torch.cuda.synchronize()
    with warnings.catch_warnings(action="ignore"):  # that the mode may overlook waits
        torch.cuda.set_sync_debug_mode("error")
    try:
        sent, arrival = transfer.send(Several([block]))
        arrival.wait()
        total = sent.tensors[0].sum()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert int(total) == 3 << 20


@pytest.mark.parametrize("place", [StorePlace.DEVICE, StorePlace.PINNED])
@pytest.mark.parametrize("width", [1, 3, 100, 128])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8, torch.int64])
def test_a_stored_column_is_a_tensor_of_the_gpu(place: StorePlace, width: int, dtype: torch.dtype) -> None:
    column = (torch.arange(1000 * width) % 100).view(1000, width).to(dtype)
    stored = CudaMemory(torch.device("cuda", 0)).stored_rows(column, place)
    assert stored.device.type == "cuda"
    assert torch.equal(stored.cpu(), column)
    ids = torch.arange(999, -1, -7, device="cuda")
    assert torch.equal(stored.index_select(0, ids).cpu(), column[ids.cpu()])


def test_free_memory_is_that_of_card_and_host() -> None:
    free = CudaMemory(torch.device("cuda", 0)).free()
    assert 0 < free.device_room < free.device_total
    assert 0 < free.host_room < free.host_total
