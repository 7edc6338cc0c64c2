"""On a GPU: a trainer with recorded steps takes the course of one with single launches."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch

import khop

if TYPE_CHECKING:
    from support.recorded_runs import RecordedRun

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="without a GPU"),
]


def fitted(run: RecordedRun) -> khop.Trainer:
    graph = khop.Graph(run.graph.store, run.graph.features)
    trainer = run.on(graph.on("cuda", topology=run.topology, columns=run.columns))
    trainer.fit()
    return trainer


def losses(folder: Path) -> list[float]:
    return [json.loads(line)["loss"] for line in (folder / "steps.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("columns", ["device", "pinned"])
def test_losses_are_those_of_single_launches(tmp_path: Path, columns: str) -> None:
    from support.recorded_runs import RecordedRun  # collection needs no package of a run

    run = RecordedRun(tmp_path / "recorded", columns=columns).with_(device="cuda")
    single = replace(run, out=tmp_path / "single").with_(launches="single")
    recorded, wanted = fitted(run), fitted(single)
    assert type(recorded._steps).__name__ == "RecordedSteps"
    assert type(wanted._steps).__name__ == "EagerSteps"
    assert losses(run.out) == pytest.approx(losses(single.out), abs=1e-9)
    for a, b in zip(recorded.model.parameters(), wanted.model.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-9)
