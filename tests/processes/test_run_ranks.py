"""Every task and loss takes the same course on any number of processes, on parts, and resumed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import khop
from processes.run_ranks import RUNS, trains
from support.small_labeled import write_labeled_graph

pytestmark = pytest.mark.long
RANKS = (1, 2, 4)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What one, two and four ranks have trained."""
    path: Path = tmp_path_factory.mktemp("runs")
    graph = write_labeled_graph(path / "graph")
    khop.partition_graph(graph, path / "parts", 2)
    arguments = (str(graph), str(path / "parts"), str(path))
    threads = torch.get_num_threads()
    with torch.random.fork_rng():
        trains(0, torch.device("cpu"), *arguments)
    torch.set_num_threads(threads)
    for procs in RANKS[1:]:
        khop.launch(
            trains, procs=procs, arguments=arguments, device="cpu", deadline=60, allow=["oversubscribe"]
        )
    return path


def lines(path: Path) -> list[dict[str, Any]]:
    return [
        {key: value for key, value in json.loads(line).items() if key not in ("seconds", "traffic")}
        for line in path.read_text().splitlines()
    ]


@pytest.mark.parametrize("name", RUNS)
def test_losses_and_scores_are_those_of_one_process(home: Path, name: str) -> None:
    alone = {log: lines(home / "1" / name / "whole" / f"{log}.jsonl") for log in ("steps", "metrics")}
    losses = [record["loss"] for record in alone["metrics"]]
    assert losses[-1] < losses[0]
    for procs in RANKS:
        for course in ("whole", "parts", "resumed"):
            folder = home / str(procs) / name / course
            for log, expected in alone.items():
                found = lines(folder / f"{log}.jsonl")
                assert found == [pytest.approx(record, rel=1e-9) for record in expected], (procs, course)


@pytest.mark.parametrize("name", [name for name in RUNS if name.endswith(", micro-batches")])
def test_micro_batches_do_not_change_the_course(home: Path, name: str) -> None:
    whole, split = (home / "1" / of / "whole" for of in (name.removesuffix(", micro-batches"), name))
    for log in ("steps", "metrics"):
        expected = lines(whole / f"{log}.jsonl")
        assert lines(split / f"{log}.jsonl") == [pytest.approx(record, rel=1e-9) for record in expected]
