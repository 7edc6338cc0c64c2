"""The ranks of a machine: the first one says where memory is, and all compare their numbers."""

from __future__ import annotations

from dataclasses import replace

from khop.distributed.machine_ranks import MachineRanks
from khop.runtime.group import ALONE, this_group
from support.covered import covered
from support.started_ranks import StartedRanks


def test_a_single_rank_is_the_first_and_agrees_with_itself() -> None:
    machine = MachineRanks(ALONE)
    assert machine.is_first
    assert machine.first_says("here") == "here"
    assert machine.all_say(3)


@covered
def _compare(rank: int, device: str) -> None:
    group = this_group()
    machine = MachineRanks(group)
    assert machine.is_first == (rank == 0)
    assert machine.first_says(f"path {rank}") == "path 0"
    assert machine.all_say(5)
    assert not machine.all_say(rank)
    # As if each rank were on a machine of its own: values of others do not count.
    apart = MachineRanks(replace(group, local_rank=0, local_world_size=1))
    assert apart.is_first
    assert apart.first_says(f"path {rank}") == f"path {rank}"
    assert apart.all_say(rank)


def test_ranks_ask_the_first_of_their_machine(ranks: StartedRanks) -> None:
    ranks.launch(_compare, 2, ())
