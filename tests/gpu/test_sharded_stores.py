"""Two processes on one GPU read each other's rows and edges of sharded stores by CUDA IPC."""

from __future__ import annotations

from itertools import count
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch._C._distributed_c10d import FileStore
from torch.multiprocessing.spawn import spawn

import khop
from khop import DrawKey, NeighborSampler, Seeds
from khop.graph.features.store import Rows
from khop.graph.store import CscGraph
from khop.kernels.gather import Shards
from khop.loading.device.device_memory import CudaMemory, MachineRanks
from khop.loading.device.device_placement import DevicePlacement
from khop.loading.device.placed_stores import Conditions, placed_stores
from reference.hops import as_plain
from support.small_typed_folders import write_typed_graph

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="without a GPU"),
]
RANKS = 2


class SameCard(CudaMemory):
    """Memory of a card that reads itself; ranks of a run have a card each."""

    def reaches(self, others: MachineRanks) -> bool:
        return True


def _read(rank: int, folder: Path, store_file: str) -> None:
    # Here, because tests of GPUs are collected without the packages of a run.
    from khop.sampling.on_device.batch_plan import BatchPlan
    from khop.sampling.on_device.device_batch import DeviceBatch, exact_sample
    from khop.sampling.on_device.device_sampler import measured_capacities
    from khop.sampling.on_device.type_nodes import counts_of

    store, calls = FileStore(store_file, RANKS), count()

    def texts(text: str) -> list[str]:
        call = next(calls)
        store.set(f"{call}-{rank}", text)
        return [store.get(f"{call}-{number}").decode() for number in range(RANKS)]

    graph, machine = khop.open_graph(folder), MachineRanks(rank, RANKS, texts)
    assert isinstance(graph.topology, CscGraph)
    request, memory = DevicePlacement.of("cuda", "sharded", "sharded"), SameCard(torch.device("cuda", 0))
    stores = placed_stores(graph.topology, graph.columns, request, memory, Conditions(), machine)
    ids = torch.arange(3, 300, 7).flip(0)
    found = stores.features(graph.schema).gather({"user": Rows(ids.cuda(), ("x", "age"))})["user"]
    for name, rows in found.items():
        assert isinstance(stores.columns["user"][name], Shards)
        assert torch.equal(rows.cpu(), graph.columns["user"][name][ids])
    assert stores.edges is not None
    seeds, key = Seeds({"item": ids % 200}, {"item": ids}), DrawKey(9)
    for rule in (khop.Uniform(), khop.Weighted("weight")):
        sampler = NeighborSampler(graph.topology, [5, 3], rule=rule, edge_ids=True)
        capacities = measured_capacities(sampler, [(seeds, key)])
        copied = NeighborSampler(stores.edges, [5, 3], rule=rule, edge_ids=True)
        batch = DeviceBatch(BatchPlan(copied, capacities, memory.device))
        batch.write(seeds, key)
        batch.launch()
        drawn = exact_sample(batch, counts_of(batch.cells.values), seeds).map(Tensor.cpu)
        assert as_plain(drawn) == as_plain(sampler.sample(seeds, key))
    texts("done")  # the other one may still read


def test_rows_and_edges_of_the_other_process_are_read(tmp_path: Path) -> None:
    folder = write_typed_graph(tmp_path / "g", renumbered=True)
    spawn(_read, (folder, str(tmp_path / "store")), nprocs=RANKS)
