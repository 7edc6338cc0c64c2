"""What is measured does not depend on how many processes measure it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from processes.measuring import measures
from support.small_folders import write_learnable_graph
from support.started_ranks import StartedRanks


@pytest.mark.long
def test_every_metric_is_the_same_number_on_one_two_and_three_processes(
    tmp_path: Path, ranks: StartedRanks
) -> None:
    graph = str(write_learnable_graph(tmp_path / "toy"))
    threads = torch.get_num_threads()
    with torch.random.fork_rng():
        measures(0, torch.device("cpu"), graph, str(tmp_path))
    torch.set_num_threads(threads)
    for procs in (2, 3):
        ranks.launch(measures, procs, (graph, str(tmp_path)))
    (alone, *shared) = [
        json.loads((tmp_path / f"{procs}-{rank}.json").read_text())
        for procs in (1, 2, 3)
        for rank in range(procs)
    ]
    assert all(each == alone for each in shared)
    assert alone["is training"]
    assert {"f1-macro", "average-precision", "links/mrr", "recall@20"} <= set(alone)
