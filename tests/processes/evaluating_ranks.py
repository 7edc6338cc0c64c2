"""Evaluations that ranks make in the tests: predictions and baselines of runs on a partitioned graph."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from khop.api.open_graph import names_of
from khop.distributed.processes.group import this_group
from khop.inference.chunks import unwatched
from khop.inference.predictions import write_parquet
from khop.run.build import prepare
from khop.run.tasks.baselines import label_propagation
from processes.run_ranks import LINKS, raw_run

RUNS: dict[str, dict[str, dict[str, Any]]] = {
    "classes": {"task": {"label": "kind"}},
    "links": {"task": LINKS, "links": {"eval_negatives": 7}},
    "classes of edges": {"task": {"kind": "edge-classification", "label": "stars"}},
}


def evaluates(rank: int, device: torch.device, parts: str, out: str) -> None:
    """Write the predictions of every run, and the scores of label propagation."""
    torch.set_num_threads(1)
    home = Path(out, str(this_group().world_size))
    for name, tables in RUNS.items():
        run = prepare(raw_run(parts, tables), Path(out))
        found = run.evaluated(("val", "test"), unwatched)
        spread = label_propagation(run, ("val", "test"), ())
        if rank == 0:
            home.mkdir(exist_ok=True)
            write_parquet(home / f"{name}.parquet", found.predictions.pieces(names_of(run.graph)))
            (home / f"{name}.json").write_text(json.dumps([found.scores, dict(spread)]))
