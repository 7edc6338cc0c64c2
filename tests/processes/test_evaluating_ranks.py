"""Ranks that hold the edges in parts write the predictions of one process, and have its baselines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest
import torch

import khop
from khop.run.build import prepare
from khop.run.tasks.baselines import label_propagation
from processes.evaluating_ranks import RUNS, evaluates
from processes.run_ranks import raw_run
from support.gate import WAIT_S
from support.small_labeled import write_labeled_graph

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What one process and two ranks of a part each have written."""
    path: Path = tmp_path_factory.mktemp("runs")
    khop.partition_graph(write_labeled_graph(path / "graph"), path / "parts", 2)
    arguments = (str(path / "parts"), str(path))
    threads = torch.get_num_threads()
    with torch.random.fork_rng():
        evaluates(0, torch.device("cpu"), *arguments)
    torch.set_num_threads(threads)
    khop.launch(
        evaluates, procs=2, arguments=arguments, device="cpu", deadline=WAIT_S, allow=["oversubscribe"]
    )
    return path


@pytest.mark.parametrize("name", RUNS)
def test_predictions_are_those_of_one_process(home: Path, name: str) -> None:
    alone, ranks = (pyarrow.parquet.read_table(home / of / f"{name}.parquet") for of in ("1", "2"))
    assert alone.schema == ranks.schema
    assert alone.num_rows > 100
    assert set(alone["split"].to_pylist()) == {"val", "test"}
    assert in_order(ranks) == [
        {
            column: pytest.approx(v, abs=1e-6) if isinstance(v, float | list) else v
            for column, v in row.items()
        }
        for row in in_order(alone)
    ]


def in_order(table: pyarrow.Table) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = table.to_pylist()
    ends = [name for name in table.column_names if name in ("node", "source", "destination")]
    return sorted(rows, key=lambda row: (row["split"], *(row[name] for name in ends), row.get("rank", 0)))


@pytest.mark.parametrize("name", RUNS)
def test_scores_and_label_propagation_are_those_of_one_process(home: Path, name: str) -> None:
    alone, ranks = (json.loads((home / of / f"{name}.json").read_text()) for of in ("1", "2"))
    assert ranks[0] == pytest.approx(alone[0], rel=1e-9)
    assert ranks[1] == alone[1]
    assert bool(alone[1]) == (name == "classes")


def test_label_propagation_is_that_of_the_graph_before_partitioning(home: Path) -> None:
    run = prepare(raw_run(str(home / "graph"), RUNS["classes"]), home)
    assert json.loads((home / "2" / "classes.json").read_text())[1] == label_propagation(
        run, ("val", "test"), ()
    )
