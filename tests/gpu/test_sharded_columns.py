"""Two processes on one GPU read each other's rows of sharded columns by CUDA IPC."""

from __future__ import annotations

from itertools import count
from pathlib import Path

import pytest
import torch
from torch._C._distributed_c10d import FileStore
from torch.multiprocessing.spawn import spawn

import khop
from khop.graph.features.store import Rows
from khop.graph.store import CscGraph
from khop.kernels.gather import Shards
from khop.loading.device.device_memory import CudaMemory, MachineRanks
from khop.loading.device.device_placement import DevicePlacement
from khop.loading.device.placed_stores import Conditions, placed_stores
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
    store, calls = FileStore(store_file, RANKS), count()

    def texts(text: str) -> list[str]:
        call = next(calls)
        store.set(f"{call}-{rank}", text)
        return [store.get(f"{call}-{number}").decode() for number in range(RANKS)]

    graph, machine = khop.open_graph(folder), MachineRanks(rank, RANKS, texts)
    assert isinstance(graph.topology, CscGraph)
    request, memory = DevicePlacement.of("cuda", "device", "sharded"), SameCard(torch.device("cuda", 0))
    stores = placed_stores(graph.topology, graph.columns, request, memory, Conditions(), machine)
    ids = torch.arange(3, 300, 7).flip(0)
    found = stores.features(graph.schema).gather({"user": Rows(ids.cuda(), ("x", "age"))})["user"]
    for name, rows in found.items():
        assert isinstance(stores.columns["user"][name], Shards)
        assert torch.equal(rows.cpu(), graph.columns["user"][name][ids])
    texts("done")  # the other one may still read


def test_rows_of_the_other_process_are_read(tmp_path: Path) -> None:
    folder = write_typed_graph(tmp_path / "g", renumbered=True)
    spawn(_read, (folder, str(tmp_path / "store")), nprocs=RANKS)
