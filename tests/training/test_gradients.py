"""Gradient averaging of one process: the model itself; tests/processes has several ranks."""

from __future__ import annotations

import time

import torch
from torch.nn.parallel import DistributedDataParallel

from khop.runtime.group import ALONE, Group
from khop.training.gradients import GradientClock, averaging


def test_alone_or_without_gradients_a_model_is_not_wrapped() -> None:
    model, frozen = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2).requires_grad_(False)
    assert averaging(ALONE, model, GradientClock()) is model
    assert averaging(Group(0, 2), frozen, GradientClock()) is frozen


def test_a_wrapped_model_averages_and_notes_when_its_gradients_were_ready(tmp_path: object) -> None:
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        model, clock = torch.nn.Linear(2, 1), GradientClock()
        parallel = averaging(Group(0, 2), model, clock)  # as a rank of two wraps it
        assert isinstance(parallel, DistributedDataParallel)
        parallel(torch.ones(3, 2)).sum().backward()
        assert clock.ready_at is not None
        assert model.weight.grad is not None
        assert model.weight.grad.tolist() == [[3.0, 3.0]]
        # A thread of the group now releases the hook's function, under the GIL. If the group ended first, it
        # would hold the GIL and wait for that thread: torch hangs.
        time.sleep(0.2)
    finally:
        torch.distributed.destroy_process_group()
