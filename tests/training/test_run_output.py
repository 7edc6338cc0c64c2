"""The folder of a run: what is saved is read again, and a run that is there is not written over."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from khop.runtime.group import Group
from khop.training.checkpoint_writer import BEST, LAST
from khop.training.model_optimizer import ModelOptimizer
from khop.training.run_output import RunOutput
from khop.training.settings import CheckpointPolicy
from khop.training.trainer_state import TrainerState


def output_of(folder: Path, rank: int = 0) -> RunOutput:
    torch.manual_seed(0)
    model = nn.Linear(2, 1)
    optimizer = ModelOptimizer(model, 0.01, 0.0)
    return RunOutput(folder, CheckpointPolicy(), model, optimizer, Group(rank), print)


def test_records_and_state_are_read_as_they_were_saved(tmp_path: Path) -> None:
    output = output_of(tmp_path)
    output.begin(0, 2)
    output.end_epoch({"epoch": 0, "loss": 0.5})
    output.save(TrainerState(epoch=1), BEST, LAST)
    output.close()
    assert sorted(path.name for path in output.folder.iterdir()) == [BEST, LAST]
    checkpoint, records = output_of(tmp_path).read()
    assert (checkpoint.folder, checkpoint.training["epoch"]) == (output.folder / LAST, 1)
    assert records == output.records == [{"epoch": 0, "loss": 0.5}]


def test_a_run_that_is_there_is_written_on_only_where_it_is_resumed(tmp_path: Path) -> None:
    first = output_of(tmp_path)
    first.begin(0, 2)
    first.end_epoch({"epoch": 0, "loss": 0.5})
    first.save(TrainerState(epoch=1), LAST)
    first.close()
    again = output_of(tmp_path)
    with pytest.raises(ValueError, match="there is a run in it already; resume it, or choose another folder"):
        again.begin(2, 2)
    checkpoint, again.records = again.read()
    again.source = checkpoint.folder
    again.begin(2, 2)
    again.close()


def test_other_ranks_write_nothing(tmp_path: Path) -> None:
    output = output_of(tmp_path, rank=1)
    output.begin(0, 2)
    output.end_epoch({"epoch": 0, "loss": 0.5})
    output.save(TrainerState(epoch=1), LAST)
    output.close()
    assert not output.is_due()
    assert list(tmp_path.iterdir()) == []
