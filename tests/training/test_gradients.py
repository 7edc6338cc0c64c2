"""Gradient averaging of one process and of two; tests/processes trains on several ranks."""

from __future__ import annotations

import time

import torch
from torch.nn.parallel import DistributedDataParallel

from khop.distributed.processes.group import ALONE, Group, this_group
from khop.training.gradients import BucketAverage, GradientClock, averaging, broadcast_weights
from support.covered import covered
from support.started_ranks import StartedRanks


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


@covered
def _average(rank: int, device: str) -> None:
    """Average gradients of two dtypes in buckets of one or two of them."""
    group = this_group()
    gradients = [
        torch.full((2, 3), rank + 1.0),
        torch.full((5,), 10.0 * rank),
        torch.full((), 4.0 - rank, dtype=torch.float64),
    ]
    before, loss = list(gradients), torch.tensor(2.0 + rank, dtype=torch.float64)
    BucketAverage(group, gradients, bucket_bytes=30).average(loss)
    assert all(a is b for a, b in zip(gradients, before, strict=True))  # in place
    assert gradients[0].eq(1.5).all()
    assert gradients[1].eq(5.0).all()
    assert gradients[2].item() == 3.5
    assert loss.item() == 2.5
    model = torch.nn.Linear(2, 2)
    torch.nn.init.constant_(model.weight, float(rank))
    broadcast_weights(group, model)
    assert model.weight.eq(0).all()


def test_gradients_are_averaged_in_buckets_and_weights_are_those_of_rank_0(ranks: StartedRanks) -> None:
    ranks.launch(_average, 2, ())


def test_one_rank_averages_nothing() -> None:
    gradient, loss = torch.ones(3), torch.tensor(2.0, dtype=torch.float64)
    BucketAverage(ALONE, [gradient]).average(loss)
    assert gradient.eq(1).all()
    assert loss.item() == 2.0
