"""What ranks do in lanes in the tests."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path

import torch

from khop.distributed.exchange.lanes import Lanes
from khop.distributed.exchange.peers import Message
from khop.distributed.processes.group import this_group
from support.covered import covered

MEETING = Message("meeting", "id")


def met(lanes: Lanes, step: int, slow: int) -> list[int]:
    """Three exchanges, some ranks slower than others in some steps: what each rank has said."""
    told: list[int] = []
    peers = lanes.peers
    for turn in range(3):
        time.sleep(0.004 * ((peers.rank + step + turn + slow) % 3))
        own = torch.tensor([step * 100 + peers.rank * 10 + turn]).view(torch.uint8)
        of_ranks = peers.exchange([own] * peers.world_size, MEETING, 8)
        told += [int(values.view(torch.int64)) for values in of_ranks]
    return told


def expected(step: int, world_size: int) -> list[int]:
    return [step * 100 + rank * 10 + turn for turn in range(3) for rank in range(world_size)]


def in_epoch(epoch: int) -> Callable[[int], tuple[int, int]]:
    """The place of each step of an epoch."""
    return lambda step: (epoch, step)


@covered
def several_epochs(rank: int, device: torch.device, out: str) -> None:
    """Whole epochs, some left early, one within another, steps of none; what was wrong with them."""
    group = this_group()
    lanes = Lanes(group, 2)
    before = threading.active_count()
    wrong: list[object] = []
    for epoch, (steps, taken, ahead) in enumerate(
        [(9, 9, 4), (9, 2, 5), (7, 1, 1), (8, 8, 1), (0, 0, 2), (1, 1, 3), (9, 3, 9), (6, 6, 4)]
    ):
        received = 0
        for step, told in enumerate(
            lanes.map(lambda step, slow=epoch: met(lanes, step, slow), range(steps), ahead, in_epoch(epoch))
        ):
            received += 1
            if told != expected(step, group.world_size):
                wrong.append((epoch, step, told))
            if (epoch, step) in {(0, 4), (6, 1)}:  # as an evaluation within an epoch
                inner = list(lanes.map(lambda step: met(lanes, step, 1), range(5), 3, in_epoch(0)))
                wrong += [told for step, told in enumerate(inner) if told != expected(step, group.world_size)]
            if received == taken:
                time.sleep(0.01 * rank)
                break
        if received != taken:
            wrong.append((epoch, received))
        outside = met(lanes, 50, epoch)  # not in a lane, while lanes may still be ending
        if outside != expected(50, group.world_size):
            wrong.append((epoch, outside))
    lanes.settle()
    Path(out, f"{rank}.json").write_text(
        json.dumps({"wrong": wrong, "threads": threading.active_count() - before})
    )


@covered
def fails(rank: int, device: torch.device, where: str) -> None:
    """Rank 1 fails in the fifth step, in a lane or in the loop around; the others train on."""
    group = this_group()
    lanes = Lanes(group, 2)

    def made(step: int) -> list[int]:
        if (rank, step, where) == (1, 5, "in a lane"):
            raise KeyError("mine")
        return met(lanes, step, 0)

    for step, _ in enumerate(lanes.map(made, range(1000), 4, in_epoch(0))):
        if (rank, step) == (1, 5):
            if where == "in the loop":
                raise KeyError("mine")
            assert where == "stopped"
            print("rank 1 has come to step 5", flush=True)
            threading.Event().wait(60)
        with group.exchanging("exchanging losses", 0, step):
            group.gather(torch.tensor([float(rank)]))
