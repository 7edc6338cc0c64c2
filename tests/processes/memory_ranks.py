"""What ranks do in the tests of memory; apart, since importing torch_geometric takes as long as torch."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import torch
from torch import Tensor, distributed
from torch_geometric.data import Data

import khop


def arrays(graph: khop.Graph | Data) -> list[Tensor]:
    """What a graph of one type holds."""
    if isinstance(graph, Data):
        return [graph.x, graph.edge_index]
    csc = graph.csc(graph.schema.edge_types[0])
    return [graph.columns[graph.schema.node_types[0]]["x"], csc.indptr, csc.indices]


def reads_all(rank: int, folder: khop.Graph, in_memory: khop.Graph, data: Data, out: str) -> None:
    """Read all of two graphs and a `Data`, and say what share of them this process holds, once all have read.

    Called by plain torch.multiprocessing.spawn.
    """
    total = sum(float(part.double().sum()) for part in [*arrays(folder), *arrays(in_memory), *arrays(data)])
    _meet(Path(out), f"{rank}.read")
    assert folder.folder is not None
    found = {
        "total": total,
        "mapped": proportional_bytes(str(folder.folder.path)),
        "shared": proportional_bytes("/torch_"),
    }
    Path(out, f"{rank}.json").write_text(json.dumps(found))
    _meet(Path(out), f"{rank}.done")
    shares_in_a_group_of_its_own(rank, folder, out)


def shares_in_a_group_of_its_own(rank: int, folder: khop.Graph, out: str) -> None:
    """Make a process group as Ray Train does, then call `khop.launch` in it."""
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
    distributed.init_process_group("gloo", init_method=f"file://{out}/meeting", rank=rank, world_size=2)
    khop.launch(_takes_its_share, arguments=(folder, out), device="cpu")
    assert distributed.is_initialized()  # it is whose it was
    distributed.destroy_process_group()


def _takes_its_share(rank: int, device: torch.device, folder: khop.Graph, out: str) -> None:
    loader = khop.Loader(khop.NeighborSampler(folder, [2]), torch.arange(23), 10, shuffle=True)
    Path(out, f"{rank}.seeds").write_text(json.dumps([batch.seeds.tolist() for batch in loader.epoch(0)]))


def _meet(folder: Path, name: str) -> None:
    (folder / name).touch()
    while len(list(folder.glob(f"*{Path(name).suffix}"))) < 2:
        time.sleep(0.01)


def proportional_bytes(path: str) -> int:
    """This process's proportional share of what it has mapped from files with `path` in their names."""
    total, is_wanted = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        first, *_ = line.split(maxsplit=1)
        if not first.endswith(":"):
            is_wanted = path in line
        elif is_wanted and first == "Pss:":
            total += int(line.split()[1]) << 10
    return total
