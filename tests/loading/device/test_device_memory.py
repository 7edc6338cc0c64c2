"""Host memory for a GPU, and the refusal of devices that are none.

Pinned stores of several ranks are one block of memory, which every rank pins; small limits are named.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
from torch import Tensor

import khop
from khop import DrawKey, NeighborSampler, Seeds, Temporal, Uniform, Weighted, process_tuning
from khop.distributed.placement import machine_ranks
from khop.distributed.processes.group import this_group
from khop.graph.features.store import Rows
from khop.graph.store import CscGraph
from khop.kernels.choice import Engine, forcing
from khop.kernels.gather import Shards
from khop.kernels.memory import PinningCalls
from khop.loading.device import device_memory as machine_segment
from khop.loading.device.device_memory import (
    CudaMemory,
    MachineRanks,
    PinningRefused,
    SharedPins,
    memory_of,
    own_pages,
    shared_pins,
)
from khop.loading.device.device_placement import DevicePlacement, StorePlace
from khop.loading.device.memory_plan import FreeMemory
from khop.loading.device.placed_stores import Conditions, PlacedStores, placed_stores
from khop.process_tuning import CoreTopology
from khop.sampling.on_device.batch_plan import BatchPlan
from khop.sampling.on_device.device_batch import DeviceBatch, exact_sample
from khop.sampling.on_device.device_sampler import measured_capacities
from khop.sampling.on_device.type_nodes import counts_of
from reference.hops import as_plain
from support import triton_interpreter
from support.covered import covered
from support.host_as_device import HostAsDevice
from support.machine_threads import Threads
from support.small_typed_folders import BUYS, write_typed_graph
from support.started_ranks import StartedRanks

NUMA_MAPS = Path("/proc/self/numa_maps")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool])
@pytest.mark.parametrize("count", [0, 1, 1000, 300_000])
def test_pages_hold_one_tensor_alone(count: int, dtype: torch.dtype) -> None:
    tensors = [own_pages(count, dtype) for _ in range(3)]
    for tensor in tensors:
        assert (tensor.numel(), tensor.dtype, tensor.any().item()) == (count, dtype, False)
        assert tensor.data_ptr() % mmap.PAGESIZE == 0
        tensor.fill_(1)
    assert len({tensor.data_ptr() for tensor in tensors}) == (3 if count else 1)


def test_stores_are_placed_on_a_gpu() -> None:
    with pytest.raises(ValueError, match=r"device 'cpu': stores are placed on a GPU"):
        memory_of("cpu")


class Runtime:
    """The calls of a GPU's runtime. `pin` returns a code; torch's view of pinned memory is the memory."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, code: int = 0, refused: int = 0) -> None:
        self.pinned: list[tuple[int, int, int]] = []  # address, bytes, flags
        self.unpinned: list[int] = []
        self.errors_cleared = 0
        self.viewed: list[object] = []  # kept alive as torch's tensors keep them
        self.selected: list[object] = []  # devices of the blocks that run
        self._code, self._refused = code, refused
        self._functions = (
            ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_uint)(self._pin),
            ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(self._unpin),
            ctypes.CFUNCTYPE(ctypes.c_int)(self._last_error),
        )
        pin, unpin, last_error = (ctypes.cast(each, ctypes.c_void_p).value or 0 for each in self._functions)
        calls = PinningCalls(0, pin, unpin, last_error, 0)
        monkeypatch.setattr("khop.loading.device.device_memory.runtime_calls", lambda index: calls)
        monkeypatch.setattr(torch.cuda, "device", self._device)
        monkeypatch.setattr(torch, "as_tensor", self._view)

    @contextmanager
    def _device(self, device: object) -> Iterator[None]:
        self.selected.append(device)
        yield
        self.selected.pop()

    def _pin(self, address: int, num_bytes: int, flags: int) -> int:
        self.pinned.append((address, num_bytes, flags))
        return self._code if len(self.pinned) > self._refused else 0  # from this call on

    def _unpin(self, address: int) -> int:
        if self.selected:  # else the call takes memory of the device that is current: the first one
            self.unpinned.append(address)
        return 0

    def _last_error(self) -> int:
        self.errors_cleared += 1
        return self._code

    def _view(self, pinned: object, device: torch.device) -> Tensor:
        self.viewed.append(pinned)
        interface = pinned.__cuda_array_interface__  # type: ignore[attr-defined]
        (count,), (address, _) = interface["shape"], interface["data"]
        return torch.frombuffer((ctypes.c_uint8 * count).from_address(address), dtype=torch.uint8)


CPU = CudaMemory(torch.device("cpu", 0))


def test_a_pinned_copy_is_pinned_once_and_until_its_view_dies(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = Runtime(monkeypatch)
    column = torch.arange(3000.0).view(1000, 3)
    found = CPU.stored(column, StorePlace.PINNED)
    assert torch.equal(found, column)
    for_every_device = 1
    assert runtime.pinned == [(found.data_ptr(), 12_000, for_every_device)]
    assert found.data_ptr() != column.data_ptr()
    assert (runtime.unpinned, runtime.errors_cleared) == ([], 0)
    address = found.data_ptr()
    runtime.viewed.clear()
    assert runtime.unpinned == [address]


def test_large_memory_is_pinned_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_segment, "PIECE_BYTES", 4096)
    runtime = Runtime(monkeypatch)
    found = CPU.stored(torch.arange(3000.0), StorePlace.PINNED)
    first = found.data_ptr()
    assert [each[:2] for each in runtime.pinned] == [
        (first, 4096),
        (first + 4096, 4096),
        (first + 8192, 3808),
    ]
    runtime.viewed.clear()
    assert runtime.unpinned == [first, first + 4096, first + 8192]


def test_pieces_before_a_refused_one_are_unpinned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_segment, "PIECE_BYTES", 4096)
    runtime = Runtime(monkeypatch, code=2, refused=2)
    with pytest.raises(PinningRefused, match="of host memory could not be pinned"):
        CPU.stored(torch.arange(3000.0), StorePlace.PINNED)
    assert runtime.unpinned == [each[0] for each in runtime.pinned[:2]]


def test_pinned_columns_share_no_page(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = Runtime(monkeypatch)
    columns = [torch.arange(30.0).view(10, 3) + number for number in range(4)]
    found = [CPU.stored_rows(column, StorePlace.PINNED) for column in columns]
    assert all(torch.equal(a, b) for a, b in zip(found, columns, strict=True))
    pages = {address // mmap.PAGESIZE for address, _, _ in runtime.pinned}
    assert len(pages) == len(columns)
    assert all(address % mmap.PAGESIZE == 0 for address, _, _ in runtime.pinned)
    runtime.viewed.clear()
    assert len(runtime.unpinned) == len(columns)


@pytest.mark.skipif(
    not Path("/sys/kernel/mm/transparent_hugepage").exists(), reason="a system without huge pages"
)
def test_pages_to_pin_are_huge_where_the_system_has_such() -> None:
    memory = own_pages(8 << 20, torch.uint8)
    flags, is_in = "", False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        name, _, rest = line.partition(" ")
        if "-" in name and not name.endswith(":"):
            first, end = (int(number, 16) for number in name.split("-"))
            is_in = first <= memory.data_ptr() < end
        elif is_in and name == "VmFlags:":
            flags = rest
    assert "hg" in flags.split()


def may_interleave() -> bool:
    """True if Linux lets this process set the memory nodes of a page."""
    page = torch.frombuffer(mmap.mmap(-1, mmap.PAGESIZE), dtype=torch.uint8)
    number, node_0 = process_tuning._MBIND.get(os.uname().machine), ctypes.c_ulong(1)
    if number is None or not NUMA_MAPS.exists():
        return False
    place = ctypes.c_void_p(page.data_ptr()), ctypes.c_ulong(mmap.PAGESIZE)
    mask = ctypes.byref(node_0), ctypes.c_ulong(65)
    return ctypes.CDLL(None).syscall(ctypes.c_long(number), *place, 3, *mask, ctypes.c_uint(0)) == 0


def policy_of(memory: Tensor) -> str:
    """The memory nodes of a mapping, in Linux' words."""
    lines = [line.split() for line in NUMA_MAPS.read_text().splitlines()]
    before = [(int(words[0], 16), words[1]) for words in lines if int(words[0], 16) <= memory.data_ptr()]
    return max(before)[1]


@pytest.mark.skipif(not may_interleave(), reason="a system where no process chooses memory nodes")
@pytest.mark.parametrize("is_bound", [False, True])
@pytest.mark.parametrize("nodes", [1, 2])
def test_memory_to_pin_comes_from_all_memory_nodes_in_turn(
    nodes: int, is_bound: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Linux leaves out a node that this machine lacks. Private memory of a bound process stays near it."""
    monkeypatch.setattr(process_tuning._Bound, "has_own_cores", is_bound)
    topology = CoreTopology({node: frozenset([node]) for node in range(nodes)}, {})
    monkeypatch.setattr(CoreTopology, "read", lambda: topology)
    private = own_pages(3 << 20, torch.uint8)
    shared = shared_pins(CPU, 3 << 20, 1, MachineRanks(0, 1, lambda text: [text]))
    assert shared is not None
    policies = [policy_of(memory).partition(":")[0] for memory in (private, shared._block)]
    of_shared = "interleave" if nodes > 1 else "default"
    assert policies == ["default" if is_bound else of_shared, of_shared]


def test_a_refusal_names_size_code_and_limit_and_clears_the_error(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = Runtime(monkeypatch, code=2)
    sentence = r"^4\.00 MB of host memory could not be pinned \(error 2\): .* \(`ulimit -l`\) or of the cont"
    with pytest.raises(PinningRefused, match=sentence):
        CPU.stored(torch.zeros(1_000_000), StorePlace.PINNED)
    assert len(runtime.pinned) == 1
    assert runtime.errors_cleared == 1  # torch's next call would report it
    assert runtime.unpinned == runtime.viewed == []


def test_nothing_is_pinned_for_an_empty_store(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = Runtime(monkeypatch)
    assert CPU.stored(torch.empty(0, 3), StorePlace.PINNED).shape == (0, 3)
    assert runtime.pinned == []


def test_a_runtime_without_the_calls_is_a_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("khop.loading.device.device_memory.runtime_calls", lambda index: None)
    with pytest.raises(PinningRefused, match="the functions that pin memory are not found"):
        CPU.stored(torch.zeros(3), StorePlace.PINNED)


NODES, DEGREE, WIDTH = 100_000, 20, 192


def opened(folder: Path) -> tuple[khop.Graph, CscGraph]:
    graph = khop.open_graph(folder)
    assert isinstance(graph.topology, CscGraph)
    return graph, graph.topology


def tensors(stores: PlacedStores) -> list[Tensor]:
    assert stores.edges is not None
    of_edges = [t for csc in stores.edges.edges.values() for t in (csc.indptr, csc.indices)]
    of_columns = [c for of_type in stores.columns.values() for c in of_type.values() if isinstance(c, Tensor)]
    return [*of_edges, *stores.edges.originals.values(), *of_columns]


def test_ranks_read_one_copy_of_what_each_would_have_copied(tmp_path: Path) -> None:
    graph, edges = opened(write_typed_graph(tmp_path / "g", renumbered=True))
    request = DevicePlacement.of("cuda", "pinned", "pinned")

    def place(machine: MachineRanks | None) -> tuple[PlacedStores, HostAsDevice]:
        memory = HostAsDevice()
        return placed_stores(edges, graph.columns, request, memory, Conditions(), machine), memory

    own, _ = place(None)
    of_ranks: list[tuple[PlacedStores, HostAsDevice]] = Threads(2).run(place)  # type: ignore[assignment]
    (first, memory), (second, other) = of_ranks
    for a, b, c in zip(tensors(own), tensors(first), tensors(second), strict=True):
        assert torch.equal(a, b)
        assert torch.equal(a, c)
        assert (a.dtype, a.stride()) == (b.dtype, b.stride()) == (c.dtype, c.stride())
        assert b.numel() == 0 or b.data_ptr() != c.data_ptr()  # two mappings
    column = first.columns["user"]["x"]
    assert isinstance(column, Tensor)
    column[0] = 77.0
    assert second.columns["user"]["x"][torch.tensor([0])].eq(77.0).all()  # of the same memory
    assert len(memory.registered) == len(other.registered) == 1
    assert memory.registered == other.registered


@pytest.mark.parametrize("count", [1, 2, 3])
def test_ranks_divide_the_rows_of_sharded_columns(tmp_path: Path, count: int) -> None:
    graph, edges = opened(write_typed_graph(tmp_path / "g", renumbered=True))
    request = DevicePlacement.of("cuda", "device", "sharded")
    columns = {t: graph.columns[t] for t in graph.schema.node_types if t in graph.columns}

    def place(machine: MachineRanks) -> tuple[PlacedStores, HostAsDevice]:
        memory = HostAsDevice()
        return placed_stores(edges, graph.columns, request, memory, Conditions(), machine), memory

    of_ranks: list[tuple[PlacedStores, HostAsDevice]] = Threads(count).run(place)  # type: ignore[assignment]
    whole = placed_stores(edges, graph.columns, DevicePlacement.of(), HostAsDevice(), Conditions()).plan
    for stores, memory in of_ranks:
        features = stores.features(graph.schema)
        for node_type, of_type in columns.items():
            ids = torch.arange(graph.num_nodes(node_type)).flip(0)
            found = features.gather({node_type: Rows(ids, tuple(of_type))})[node_type]
            for name, column in of_type.items():
                assert torch.equal(found[name], column[ids])
                table = stores.columns[node_type][name]
                assert isinstance(table, Shards if count > 1 else Tensor)
                assert (tuple(table.shape), table.dtype) == (tuple(column.shape), column.dtype)
        assert stores.plan.bytes_on_device <= whole.bytes_on_device
        assert memory.taken[StorePlace.PINNED] == 0


def test_edges_are_divided_where_a_copy_does_not_fit(tmp_path: Path) -> None:
    _, edges = opened(write_typed_graph(tmp_path / "g"))
    whole = placed_stores(edges, {}, DevicePlacement.of(), HostAsDevice(), Conditions()).plan
    free = FreeMemory((1 << 29) + whole.bytes_on_device - 1, 1 << 40)

    def places(reached: bool) -> list[object]:
        def place(machine: MachineRanks) -> StorePlace:
            memory = HostAsDevice(said=free, is_reached=reached)
            stores = placed_stores(edges, {}, DevicePlacement.of(), memory, Conditions(), machine)
            assert stores.edges is not None
            assert all(isinstance(csc.indices, Shards) is reached for csc in stores.edges.edges.values())
            return stores.plan.topology

        return Threads(2).run(place)

    assert places(True) == [StorePlace.SHARDED] * 2
    assert places(False) == [StorePlace.PINNED] * 2


def test_arrays_of_a_rule_that_do_not_fit_on_one_rank_are_refused_on_all(tmp_path: Path) -> None:
    _, edges = opened(write_typed_graph(tmp_path / "g"))

    def place(machine: MachineRanks) -> CscGraph:
        memory, request = HostAsDevice(), DevicePlacement.of("cuda", "sharded")
        stores = placed_stores(edges, {}, request, memory, Conditions(), machine)
        if machine.rank == 1:
            memory.most = {StorePlace.DEVICE: 0}
        assert stores.edges is not None
        stores.edges.prepare(Weighted("weight").needs(BUYS))
        return stores.edges

    for error in Threads(2).run(place):
        assert isinstance(error, ValueError)
        assert "could not be divided among the GPUs of this machine" in str(error)
        assert 'Give topology "pinned" or "host"' in str(error)


def test_a_column_is_divided_where_a_copy_does_not_fit(tmp_path: Path) -> None:
    graph, edges = opened(write_typed_graph(tmp_path / "g"))
    whole = placed_stores(edges, graph.columns, DevicePlacement.of(), HostAsDevice(), Conditions()).plan
    free = FreeMemory((1 << 29) + whole.bytes_on_device - 1, 1 << 40)

    def places(reached: bool) -> list[set[StorePlace]]:
        def place(machine: MachineRanks) -> set[StorePlace]:
            # The ranks plan by the least free memory.
            memory = HostAsDevice(
                said=free if machine.rank else FreeMemory(1 << 40, 1 << 40), is_reached=reached
            )
            stores = placed_stores(edges, graph.columns, DevicePlacement.of(), memory, Conditions(), machine)
            return {*stores.plan.columns.values()}

        return Threads(2).run(place)  # type: ignore[return-value]

    assert places(True) == [{StorePlace.DEVICE, StorePlace.SHARDED}] * 2
    assert places(False) == [{StorePlace.DEVICE, StorePlace.PINNED}] * 2


def test_shards_that_a_rank_cannot_open_are_refused_on_all(tmp_path: Path) -> None:
    graph, edges = opened(write_typed_graph(tmp_path / "g"))

    class Closed(HostAsDevice):
        def opened(self, text: str, like: Tensor) -> Tensor:
            raise RuntimeError("CUDA error: peer access is not supported between these two devices")

    def place(machine: MachineRanks) -> PlacedStores:
        memory, request = (
            Closed() if machine.rank else HostAsDevice(),
            DevicePlacement.of("cuda", "device", "sharded"),
        )
        return placed_stores(edges, graph.columns, request, memory, Conditions(), machine)

    for error in Threads(2).run(place):
        assert isinstance(error, ValueError)
        assert "a GPU cannot open the memory of another" in str(error)


def test_gpus_that_cannot_read_each_other_refuse_sharded_columns(tmp_path: Path) -> None:
    graph, edges = opened(write_typed_graph(tmp_path / "g"))
    request = DevicePlacement.of("cuda", "sharded", "sharded")

    def place(machine: MachineRanks) -> PlacedStores:
        memory = HostAsDevice(is_reached=machine.rank == 0)
        return placed_stores(edges, graph.columns, request, memory, Conditions(), machine)

    for error in Threads(2).run(place):
        assert isinstance(error, ValueError)
        assert 'topology and columns "sharded": the GPUs of this machine cannot read each' in str(error)


def test_a_machine_with_too_little_memory_is_named_on_every_rank() -> None:
    with patch.object(machine_segment, "free_memory_bytes", lambda: 10**8):
        found = Threads(2).run(lambda machine: shared_pins(HostAsDevice(), 4 * 10**9, 3, machine))
    for error in found:
        assert isinstance(error, PinningRefused)
        assert str(error) == (
            "4.00 GB of shared memory for the pinned stores of this machine: 0.10 GB are free in it or in "
            "the control group of its container"
        )


def test_a_system_that_gives_no_memory_is_named_on_every_rank() -> None:
    def refuse(descriptor: int, start: int, size: int) -> None:
        raise OSError(28, "No space left on device")

    with patch.object(os, "posix_fallocate", refuse):
        found = Threads(2).run(lambda machine: shared_pins(HostAsDevice(), 1000, 3, machine))
    assert [str(error).rpartition(": ")[2] for error in found] == ["No space left on device"] * 2


def test_ranks_in_other_containers_keep_copies_of_their_own() -> None:
    real = os.open

    def hidden(path: str, *arguments: int) -> int:
        if path.startswith("/proc/"):
            raise FileNotFoundError(path)
        return real(path, *arguments)

    with patch.object(os, "open", hidden):
        assert Threads(2).run(lambda machine: shared_pins(HostAsDevice(), 1000, 3, machine)) == [None, None]


def test_ranks_that_cannot_share_divide_the_memory_of_the_host(tmp_path: Path) -> None:
    graph, edges = opened(write_typed_graph(tmp_path / "g"))
    request = DevicePlacement.of("cuda", "pinned", "pinned")
    needed = placed_stores(edges, graph.columns, request, HostAsDevice(), Conditions()).plan.pinned_bytes
    reserve = 1 << 30

    def place(share: float) -> list[object]:
        said = FreeMemory(1 << 40, reserve + int(share * needed))

        def of_rank(machine: MachineRanks) -> PlacedStores:
            return placed_stores(
                edges, graph.columns, request, HostAsDevice(said=said), Conditions(), machine
            )

        with patch("khop.loading.device.placed_stores.shared_pins", lambda *_: None):
            return Threads(2).run(of_rank)

    assert all(isinstance(found, PlacedStores) for found in place(2.1))
    for error in place(1.5):
        assert "of pinned stores on each of 2 ranks, which cannot share memory" in str(error)


def test_ranks_with_other_plans_keep_copies_of_their_own() -> None:
    found = Threads(2).run(lambda machine: shared_pins(HostAsDevice(), 1000 + machine.rank, 3, machine))
    assert found == [None, None]


def test_if_one_rank_cannot_pin_all_take_the_next_plan(tmp_path: Path) -> None:
    graph, edges = opened(write_typed_graph(tmp_path / "g"))
    request = DevicePlacement.of("cuda", "pinned", "host")

    class Refuses(HostAsDevice):
        def pinned(self, host: Tensor) -> Tensor:
            raise PinningRefused("not here")

    def place(machine: MachineRanks) -> PlacedStores:
        memory = Refuses() if machine.rank == 1 else HostAsDevice()
        return placed_stores(edges, graph.columns, request, memory, Conditions(), machine)

    first, second = Threads(2).run(place)
    assert "a larger placement failed on another rank of this machine" in str(first)
    assert "a larger placement failed: not here" in str(second)


def test_later_copies_are_each_ranks_own() -> None:
    memory = HostAsDevice(said=FreeMemory(1, 2))
    (pins,) = Threads(1).run(lambda machine: shared_pins(memory, 1000, 2, machine))
    assert isinstance(pins, SharedPins)
    assert pins.free() == FreeMemory(1, 2)
    rows = torch.arange(10)
    assert torch.equal(pins.stored(rows, StorePlace.PINNED), rows)
    pins.close()
    assert memory.taken[StorePlace.PINNED] == 0
    kept = pins.stored(rows, StorePlace.PINNED)
    assert memory.taken[StorePlace.PINNED] == kept.nbytes


def held_kib() -> int:
    """What this process holds without pages of files: a page of memory that n processes share counts as 1/n.

    Anonymous pages count whole: their shares change when another process of the same server of forks ends.
    """
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    sizes = {name: size for name, _, size in (line.partition(":") for line in lines)}
    return sum(int(sizes[name].split()[0]) for name in ("Anonymous", "Pss_Shmem"))


@covered
def _place_on_rank(rank: int, device: str, folder: Path, out: Path) -> None:
    graph, edges = opened(folder)
    group, memory = this_group(), HostAsDevice()
    group.barrier()
    before = held_kib()
    group.barrier()
    request = DevicePlacement.of("cuda", "pinned", "pinned")
    machine = machine_ranks(group)
    stores = placed_stores(edges, graph.columns, request, memory, Conditions(), machine)
    total = sum(int(tensor.double().sum()) for tensor in tensors(stores))  # reads all of it
    group.barrier()
    held = held_kib() - before
    group.barrier()
    (out / f"{rank}.json").write_text(
        json.dumps([held << 10, total, stores.plan.pinned_bytes, memory.registered])
    )


@covered
def _gather_shards(rank: int, device: str, path: Path) -> None:
    triton_interpreter.correct()
    group, (graph, edges) = this_group(), opened(path)
    request, machine = DevicePlacement.of("cuda", "sharded", "sharded"), machine_ranks(group)
    stores = placed_stores(edges, graph.columns, request, HostAsDevice(), Conditions(), machine)
    assert stores.line.endswith("as requested")
    is_divided = group.world_size > 1
    ids = torch.arange(3, 300, 7).flip(0)
    with forcing(Engine.TRITON):
        found = stores.features(graph.schema).gather({"user": Rows(ids, ("x", "age"))})["user"]
    for name, rows in found.items():
        assert isinstance(stores.columns["user"][name], Shards) is is_divided
        assert torch.equal(rows, graph.columns["user"][name][ids])
    assert stores.edges is not None
    assert isinstance(stores.edges.csc(BUYS).indices, Shards) is is_divided
    ids = torch.arange(group.rank, 60, 7)  # ranks draw other batches
    for rule in (Uniform(), Weighted("weight"), Temporal("time")):
        times = {"item": ids * 200} if isinstance(rule, Temporal) else None
        seeds, key = Seeds({"item": ids}, {"item": ids}, times), DrawKey(9)
        sampler = NeighborSampler(edges, [3, 2], rule=rule, edge_ids=True)
        expected = sampler.sample(seeds, key)
        with forcing(Engine.TRITON):
            capacities = measured_capacities(sampler, [(seeds, key)])
            copied = NeighborSampler(stores.edges, [3, 2], rule=rule, edge_ids=True)
            batch = DeviceBatch(BatchPlan(copied, capacities, "cpu"))
            batch.write(seeds, key)
            batch.launch()
            drawn = exact_sample(batch, counts_of(batch.cells.values), seeds)
        assert as_plain(drawn) == as_plain(expected)
    group.barrier()  # the others may still read


@pytest.mark.core(1)
@pytest.mark.parametrize("count", [1, 2, pytest.param(4, marks=pytest.mark.long)])
def test_kernels_read_the_shards_of_other_processes(tmp_path: Path, ranks: StartedRanks, count: int) -> None:
    ranks.launch(_gather_shards, count, (write_typed_graph(tmp_path / "g", renumbered=True),))


@pytest.mark.long
def test_four_processes_hold_the_graph_once(tmp_path: Path, ranks: StartedRanks) -> None:
    destinations = torch.arange(NODES).repeat_interleave(DEGREE)
    sources = torch.randint(NODES, (NODES * DEGREE,), generator=torch.Generator().manual_seed(1))
    khop.write_graph(
        tmp_path / "g",
        {"node": khop.NodeTable(NODES, {"x": torch.ones(NODES, WIDTH)})},
        {("node", "to", "node"): khop.EdgeTable(sources, destinations)},
    )
    ranks.launch(_place_on_rank, 4, (tmp_path / "g", tmp_path))
    found = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(4)]
    held, totals, sizes, registered = zip(*found, strict=True)
    assert len(set(totals)) == len(set(sizes)) == 1
    assert all(len(of_rank) == 1 for of_rank in registered)
    print(f"{sum(held) / sizes[0]:.3f} graphs of {sizes[0]:,} bytes in four processes")
    assert 0.9 * sizes[0] < sum(held) <= 1.1 * sizes[0]
