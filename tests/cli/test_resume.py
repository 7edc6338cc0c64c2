"""`khop train --resume`: what may not be gone on with is named, a damaged checkpoint is done without."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from cli.conftest import Ran
from cli.test_train import metrics_of
from support.small_folders import write_learnable_graph


def test_another_graph_or_model_under_a_checkpoint_is_refused_and_named(
    khop_command: Callable[..., Ran], small_run: Path
) -> None:
    write_learnable_graph(Path("mine"), nodes=300)
    assert khop_command("train", "run.toml", "--graph", "mine", "--epochs", "1", "--out", "a").code == 0
    shutil.rmtree("mine")
    write_learnable_graph(Path("mine"), nodes=310)
    refused = khop_command("train", "--resume", "a", "--epochs", "2")
    assert refused.code == 2
    assert refused.stderr.startswith(
        "khop: a/checkpoints/last: the run was started with other settings: graph was "
    )
    remedy = (
        ". Restore these settings, or start a new run; after khop append, earlier snapshots are in "
        "GRAPH/snapshots: khop train --resume RUN --graph GRAPH/snapshots/ID\n"
    )
    assert refused.stderr.endswith(remedy)

    config = Path("a/config.toml")
    config.write_text(config.read_text().replace("hidden = 16", "hidden = 17"))
    refused = khop_command("train", "--resume", "a", "--epochs", "2")
    assert refused.code == 2
    warning, error = refused.stderr.splitlines()
    assert warning.startswith("khop: a/config.toml: was changed or damaged after khop train wrote it; its")
    assert f"{error}\n".endswith("; model.hidden was 16 and is 17" + remedy)


@pytest.mark.long
def test_a_damaged_checkpoint_is_reported_and_the_one_before_it_used(
    khop_command: Callable[..., Ran], small_run: Path
) -> None:
    khop_command("train", "run.toml", "--out", "a")
    expected = metrics_of("a")
    damaged = Path("a/checkpoints/last/optimizer.safetensors")
    damaged.write_bytes(damaged.read_bytes()[:100])
    resumed = khop_command("train", "--resume", "a")
    assert resumed.code == 0
    assert resumed.stderr == f"khop: {damaged}: cut short or damaged; a/checkpoints/last-1 is used instead\n"
    assert metrics_of("a") == expected


def test_the_name_of_a_run_folder_offers_to_resume_it(
    khop_command: Callable[..., Ran], trained_run: None
) -> None:
    ran = khop_command("train", "a")
    assert ran.code == 2
    assert "khop train --resume a" in ran.stderr
    assert "khop train a/config.toml" in ran.stderr
