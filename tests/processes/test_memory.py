"""Processes of one machine share one copy of a graph, wherever it came from."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import torch
from torch.multiprocessing import spawn
from torch_geometric.data import Data

import khop
from processes.memory_ranks import arrays, reads_all

NODES, WIDTH, EDGES = 20_000, 100, 200_000  # 8 MB of columns, 1.6 to 3.2 MB of edges
LIKE = ("item", "like", "item")


def test_a_folder_an_in_memory_graph_and_a_data_are_one_copy_in_two_spawned_processes(tmp_path: Path) -> None:
    """By plain torch.multiprocessing.spawn; what is in memory is copied once, and freed with its owners."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(NODES, WIDTH, generator=generator)
    ends = torch.randint(NODES, (2, EDGES), generator=generator)
    tables = {"item": khop.NodeTable(columns={"x": x})}, {LIKE: khop.EdgeTable(ends[0], ends[1])}
    folder = khop.open_graph(khop.write_graph(tmp_path / "graph", *tables))
    assert len(pickle.dumps(folder)) < 1000  # its path
    in_memory = khop.graph_from_pyg(Data(x=x.clone(), edge_index=ends.clone()))
    data = Data(x=x.clone(), edge_index=ends.clone())

    spawn(reads_all, (folder, in_memory, data, str(tmp_path)), nprocs=2)

    found = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    assert found[0]["total"] == found[1]["total"]
    of_folder = sum(path.stat().st_size for path in (tmp_path / "graph").glob("**/*.npy"))
    assert sum(of_rank["mapped"] for of_rank in found) <= 1.15 * of_folder
    of_tensors = sum(part.nbytes for part in [*arrays(in_memory), *arrays(data)])
    # This process holds them too: a third of each.
    assert 0.5 * of_tensors < sum(of_rank["shared"] for of_rank in found) <= 1.15 * of_tensors * 2 / 3
