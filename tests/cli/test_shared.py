"""Options that several commands share name the checkpoints that a run writes."""

from __future__ import annotations

from khop.cli.commands.shared import CheckpointChoice
from khop.training.run_output import BEST, LAST


def test_checkpoints_are_those_of_a_run() -> None:
    assert [str(checkpoint) for checkpoint in CheckpointChoice] == [BEST, LAST]
