"""Processes of one machine share one copy of a graph, wherever it came from."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from torch.multiprocessing import spawn
from torch_geometric.data import Data

import khop
from processes.memory_ranks import arrays, reads_all
from support.commands import ENVIRONMENT, PYTHON, TESTS
from support.gate import WAIT_S, Gate

NODES, WIDTH, EDGES = 20_000, 100, 200_000  # 8 MB of columns, 1.6 to 3.2 MB of edges
LIKE = ("item", "like", "item")


@pytest.mark.long
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

    # And in a process group that somebody else has made, as Ray Train does, they share out the seeds.
    shares = [json.loads((tmp_path / f"{rank}.seeds").read_text()) for rank in range(2)]
    steps = [first + second for first, second in zip(*shares, strict=True)]
    assert [len(step) for step in steps] == [10, 10, 3]
    assert sorted(seed for step in steps for seed in step) == list(range(23))


def proportional_mib(pids: list[int]) -> Mapping[str, float]:
    """What processes hold together, in MiB; a page that n processes share counts as 1/n in each."""
    found = {"Pss": 0.0, "Pss_Anon": 0.0}
    for pid in pids:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            name, _, size = line.partition(":")
            if name in found:
                found[name] += int(size.split()[0]) / 1024
    return found


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_four_processes_that_train_on_the_medium_graph_hold_it_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A million nodes, 25 M edges, 0.5 GB. Models, batches and the like are each process's own: anonymous."""
    monkeypatch.chdir(tmp_path)
    graphs = os.environ.get("KHOP_BENCHMARK_GRAPHS", str(tmp_path))
    subprocess.run(
        [sys.executable, str(TESTS.parent / "benchmarks" / "graphs.py"), "medium"],
        env=ENVIRONMENT | {"KHOP_BENCHMARK_GRAPHS": graphs},
        check=True,
    )
    held = {}
    for procs in (1, 4):
        gate = Gate.shut(tmp_path / f"gate-{procs}", "update 70")  # of 79: nearly all of the graph was read
        given = ["--val-split", "train", "--test-split", "train", "--procs", str(procs), "--out", str(procs)]
        gated = [*PYTHON, "support.gated_khop", "train", "--graph", f"{graphs}/medium/graph"]
        running = subprocess.Popen(
            [*gated, "--hidden", "32", *given],
            env=ENVIRONMENT | gate.environment,
            stdout=subprocess.DEVNULL,
            text=True,
        )
        try:
            held[procs] = proportional_mib(gate.wait_for(procs, running))
        finally:
            running.terminate()
            running.wait(timeout=WAIT_S)
    print({procs: {kind: round(mib) for kind, mib in of.items()} for procs, of in held.items()})
    own = held[4]["Pss_Anon"] - held[1]["Pss_Anon"]
    assert held[4]["Pss"] <= 1.15 * held[1]["Pss"] + own
