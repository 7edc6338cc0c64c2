"""A run over two hosts with a bad network, a lost machine, a full disk: the same result, or an error soon."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from network.hosts import Host, filled, small_disk, two_hosts
from network.runs import Outcome, await_ranks_end, ended, started
from processes.test_train import assert_same_result
from support.commands import train
from support.gate import WAIT_S
from support.held_ranks import Hold

pytestmark = [pytest.mark.long, pytest.mark.timeout(900), pytest.mark.usefixtures("run_toml")]


@pytest.mark.parametrize("how", ["well", "5 % lost", "10 Mbit/s", "200 ms"])
def test_a_network_that_is_only_bad_changes_nothing(how: str) -> None:
    train("run.toml", "--out", "undisturbed", "--procs", "2")
    with two_hosts(delay_s=0.2 if how == "200 ms" else 0.0) as hosts:
        for host in hosts:
            if how == "5 % lost":
                host.lose(5)
            if how == "10 Mbit/s":
                host.limit(10)
        outcomes = ended(started(hosts, "run.toml", "--out", "far", "--deadline", "300"))
    assert [outcome.code for outcome in outcomes] == [0, 0], outcomes
    assert_same_result("far", "undisturbed")


PLACE = r"(computing the loss|waiting for its batch|exchanging \w+) in epoch 1, step [34]"
NAMED = rf"khop: rank 1 \(host node-b\) no longer responds; last seen {PLACE}\. Rank 0 waited {PLACE}"
FULL = r"khop: rank 0 \(host node-a\) failed ending: OSError: .*No space left on device"
SECONDS = 40  # past the deadline of 20 s, within which every rank has to end, on a busy machine


def broken(hosts: tuple[Host, Host], hold: Hold, strike: Callable[[int], None]) -> list[Outcome]:
    """A run that something happens to when rank 1, on node-b, is held; how either host's part ends.

    All ranks have to end with an error soon after the deadline, the launchers when the kernel takes their
    connection for lost.
    """
    for host in hosts:
        host.give_up_after(8)  # 100 s, instead of a quarter of an hour
    running = started(hosts, "run.toml", "--out", "a", "--epochs", "1000", hold=hold)
    held = hold.wait(*running)
    strike(held)
    hold.release()
    await_ranks_end(hosts, 20 + SECONDS)
    outcomes = ended(running, wait_s=2 * WAIT_S)
    assert all(outcome.code for outcome in outcomes), outcomes
    return outcomes


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "paused"])
def test_a_worker_that_is_gone_is_named(number: int, hosts: tuple[Host, Host], hold: Hold) -> None:
    first, _ = broken(hosts, hold, lambda pid: os.kill(pid, number))
    assert re.search(NAMED, first.errors), first.errors


def test_a_cut_link_is_named_on_both_sides(hosts: tuple[Host, Host], hold: Hold) -> None:
    first, second = broken(hosts, hold, lambda pid: hosts[1].set_link("down"))
    assert re.search(NAMED, first.errors), first.errors
    lost = rf"khop: rank 1 \(host node-b\) has lost rank 0's machine \(node-a:\d+\) while {PLACE}"
    assert re.search(lost, second.errors), second.errors


@pytest.mark.parametrize("how", ["killed", "cut off"])
def test_a_run_that_lost_a_worker_continues_by_itself_to_the_same_result(
    how: str, hosts: tuple[Host, Host], hold: Hold
) -> None:
    """torchrun starts all ranks again, from the last checkpoint, once those of the attempt have ended."""
    train("run.toml", "--out", "undisturbed", "--procs", "2")
    running = started(hosts, "run.toml", "--out", "far", restarts=3, hold=hold)
    held = hold.wait(*running)
    if how == "killed":
        os.kill(held, signal.SIGKILL)
        hold.release()
    else:
        hosts[1].set_link("down")
        hold.release()
        await_ranks_end(hosts[1:], 20 + SECONDS)
        hosts[1].set_link("up")
    outcomes = ended(running)
    assert [outcome.code for outcome in outcomes] == [0, 0], outcomes
    assert_same_result("far", "undisturbed")


def test_a_full_disk_ends_the_run_in_time_and_it_continues_to_the_same_result(
    hosts: tuple[Host, Host], hold: Hold
) -> None:
    """On node-a, where the run folder lies, from the middle of the run on; the checkpoint before stays."""
    train("run.toml", "--out", "undisturbed", "--procs", "2")
    with small_disk(Path("small"), 4 << 20):
        running = started(hosts, "run.toml", "--out", "small/far", hold=hold)
        hold.wait(*running)
        rest = filled(Path("small"))
        hold.release()
        first, second = ended(running)
        assert first.code
        assert second.code
        assert "No space left on device" in first.errors
        assert re.search(FULL, second.errors), second.errors
        rest.unlink()
        outcomes = ended(started(hosts, "--resume", "small/far"))
        assert [outcome.code for outcome in outcomes] == [0, 0], outcomes
        assert_same_result("small/far", "undisturbed")
