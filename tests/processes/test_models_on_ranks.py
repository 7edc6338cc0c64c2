"""Every model takes one course on any number of ranks, and after a resume by another number."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import khop
from processes.model_ranks import MODELS, trained
from support.small_rated import write_rated


def course(run: Path, name: str) -> list[float]:
    """The losses of all steps, or the scores of all epochs."""
    lines = (run / ("steps.jsonl" if name == "loss" else "metrics.jsonl")).read_text().splitlines()
    return [json.loads(line)[name] for line in lines]


@pytest.mark.long
@pytest.mark.timeout(900)
def test_losses_and_scores_are_the_same_on_any_number_of_ranks_and_after_a_resume(tmp_path: Path) -> None:
    """One rank trains two epochs; beside it, two ranks train one epoch and four go on."""
    folder = str(write_rated(tmp_path / "small"))
    for procs, epochs, where in ((1, 2, "one"), (2, 1, "many"), (4, 2, "many")):
        arguments = (folder, str(tmp_path / where), epochs)
        khop.launch(trained, procs=procs, arguments=arguments, device="cpu")
    for name in MODELS:
        one, many = tmp_path / "one" / name, tmp_path / "many" / name
        assert course(many, "loss") == pytest.approx(course(one, "loss"), rel=1e-9), name
        assert course(many, "val_accuracy") == course(one, "val_accuracy"), name
