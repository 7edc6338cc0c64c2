"""The values of an update that all ranks share: sums, the strongest signal, and each rank's times."""

from __future__ import annotations

import torch

from khop.runtime.group import Group
from khop.training.gathered_step import GatheredStep, RankStep
from khop.training.step_clock import LATE, STAGES


def test_one_rank_gets_back_its_own_values() -> None:
    seconds = {stage: float(number) for number, stage in enumerate(STAGES)}
    step = RankStep(6.5, 4, 15, 2.5).gathered(Group(), seconds, {"rows": 3, "bytes": 24})
    assert (step.loss_sum, step.seeds, step.signal_number) == (6.5, 4, 15)
    assert step.seconds == {LATE: [0.0], **{stage: [float(number)] for number, stage in enumerate(STAGES)}}
    assert step.traffic == {"bytes": [24], "rows": [3]}


def test_losses_and_seeds_are_sums_and_delays_count_from_the_first_rank() -> None:
    stages = [0.0] * len(STAGES)
    rows = [[1.5, 2, 0, 10.25, *stages, 5], [2.0, 3, 2, 10.0, *stages, 7]]
    step = GatheredStep(torch.tensor(rows, dtype=torch.float64), {"rows": 5})
    assert (step.loss_sum, step.seeds, step.signal_number) == (3.5, 5, 2)
    assert step.seconds[LATE] == [0.25, 0.0]
    assert step.traffic == {"rows": [5, 7]}
