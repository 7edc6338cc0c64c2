"""Two hosts that hold a part of a graph each: a bad network, a lost machine, a full disk on one of them."""

from __future__ import annotations

import os
import re
import signal
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

import khop
from network.hosts import Host, filled, small_disk, two_hosts
from network.runs import RUN, await_end_of, ended, ranks_on, started
from network.test_faults import FULL, SECONDS
from processes.conftest import STEPS
from processes.test_train import assert_same_result
from support.commands import records, train, train_here
from support.held_ranks import Hold, Moment
from support.small_folders import write_learnable_graph

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

EXACTLY = ("--precision", "float64", "--dropout", "0", "--epochs", "2")


@dataclass(frozen=True)
class Parted:
    """A run on parts, and where it has been trained without any trouble."""

    arguments: tuple[str, ...]
    undisturbed: str


@pytest.fixture(scope="module", params=["features", "all"])
def parted(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Parted:
    """By each placement, on a graph of two parts, one for each host."""
    home: Path = tmp_path_factory.mktemp("parted")
    khop.partition_graph(write_learnable_graph(home / "toy", nodes=450), home / "toy-2", 2)
    (home / "run.toml").write_text(RUN)
    arguments = (str(home / "run.toml"), "--graph", str(home / "toy-2"), "--placement", request.param)
    train(*arguments, "--out", str(home / "undisturbed"), "--procs", "2")
    return Parted(arguments, str(home / "undisturbed"))


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which both hosts see."""
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("how", ["5 % lost", "10 Mbit/s", "200 ms"])
def test_a_network_that_is_only_bad_changes_nothing(how: str, parted: Parted) -> None:
    with two_hosts(delay_s=0.2 if how == "200 ms" else 0.0) as hosts:
        for host in hosts:
            if how == "5 % lost":
                host.lose(5)
            if how == "10 Mbit/s":
                host.limit(10)
        outcomes = ended(started(hosts, *parted.arguments, "--out", "far", "--deadline", "300"))
    assert [outcome.code for outcome in outcomes] == [0, 0], outcomes
    assert_same_result("far", parted.undisturbed)


def test_two_hosts_of_two_processes_have_the_losses_and_scores_of_one(
    parted: Parted, hosts: tuple[Host, Host]
) -> None:
    """Which has the graph that was cut; on the hosts two processes share a part."""
    run, _, parts, *placement = parted.arguments
    train_here(run, "--graph", parts.removesuffix("-2"), "--out", "alone", *EXACTLY)
    outcomes = ended(started(hosts, run, "--graph", parts, *placement, "--out", "far", *EXACTLY, procs=2))
    assert [outcome.code for outcome in outcomes] == [0, 0], outcomes
    for log in ("steps", "metrics"):
        alone, far = records("alone", log), records("far", log)
        assert len(far) == (2 * STEPS if log == "steps" else 2)
        for line, beside in zip(far, alone, strict=True):
            assert line.pop("traffic")
            assert line == pytest.approx(beside, rel=1e-9)


# Where the ranks are, step 3 being the last that both have made, when a lane asks for what step 4 needs.
AT = {
    Moment.EXCHANGES: r"(computing the loss|waiting for its batch|exchanging \w+) in epoch 1, step [34]",
    Moment.COMPUTES: r"computing layer [12] of item",
}


def named(moment: Moment) -> str:
    """What rank 0 says of rank 1."""
    return (
        rf"khop: rank 1 \(host node-b\) no longer responds; last seen {AT[moment]}\. "
        rf"Rank 0 waited {AT[moment]}.*"
    )


def said(sentence: str, errors: str, *, seconds: float) -> None:
    """It is among the errors, and shown beside the seconds until they came."""
    found = re.search(sentence, errors)
    assert found, errors
    print(f"after {seconds:.1f} s: {found[0]}")


@pytest.fixture
def in_exchange(tmp_path: Path) -> Hold:
    """Rank 1, in a lane that asks for what a batch in the middle of the second epoch needs."""
    (tmp_path / "hold").mkdir()
    return Hold(tmp_path / "hold", 1, 1, 4, Moment.EXCHANGES)


@pytest.fixture
def in_evaluation(tmp_path: Path) -> Hold:
    """Rank 1, in a lane that asks for what the evaluation after the first epoch needs."""
    (tmp_path / "hold").mkdir()
    return Hold(tmp_path / "hold", 1, 0, -1, Moment.COMPUTES)


@pytest.mark.parametrize("moment", ["in_exchange", "in_evaluation"])
def test_a_rank_that_is_killed_is_named_and_the_run_can_continue_to_the_same_result(
    moment: str, parted: Parted, hosts: tuple[Host, Host], request: pytest.FixtureRequest
) -> None:
    hold: Hold = request.getfixturevalue(moment)
    running = started(hosts, *parted.arguments, "--out", "far", hold=hold)
    held = hold.wait(*running)
    ranks = ranks_on(*hosts)
    os.kill(held, signal.SIGKILL)
    hold.release()
    seconds = await_end_of(ranks, hosts, 20 + SECONDS)
    first, second = ended(running)
    said(named(hold.moment), first.errors, seconds=seconds)
    assert first.code
    assert second.code
    outcomes = ended(started(hosts, "--resume", "far"))
    assert [outcome.code for outcome in outcomes] == [0, 0], outcomes
    assert_same_result("far", parted.undisturbed)


@pytest.mark.parametrize("how", ["killed", "paused", "cut off"])
def test_a_run_that_lost_a_rank_continues_by_itself_to_the_same_result(
    how: str, parted: Parted, hosts: tuple[Host, Host], in_exchange: Hold
) -> None:
    """torchrun starts all ranks again once those of the attempt have ended, soon after the deadline of 20 s.

    Of one that is killed it may know before the others do, which it then ends without their having a word.
    """
    running = started(hosts, *parted.arguments, "--out", "far", restarts=3, hold=in_exchange)
    held = in_exchange.wait(*running)
    ending = ranks_on(*(hosts[:1] if how == "paused" else hosts))
    if how == "cut off":
        hosts[1].set_link("down")
    else:
        os.kill(held, signal.SIGKILL if how == "killed" else signal.SIGSTOP)
    in_exchange.release()
    seconds = await_end_of(ending, hosts, 20 + SECONDS)
    hosts[1].set_link("up")
    first, second = ended(running)
    if how == "killed":
        said(rf"failed \(exitcode: -9\) local_rank: 0 \(pid: {held}\)", second.errors, seconds=seconds)
    else:
        said(named(Moment.EXCHANGES), first.errors, seconds=seconds)
    if how == "cut off":
        lost = rf"khop: rank 1 .* has lost rank 0's machine .* while {AT[Moment.EXCHANGES]}.*"
        said(lost, second.errors, seconds=seconds)
    assert [first.code, second.code] == [0, 0], [first, second]
    assert_same_result("far", parted.undisturbed)


def test_a_full_disk_on_one_host_ends_the_run_in_time_and_it_continues_to_the_same_result(
    parted: Parted, hosts: tuple[Host, Host], in_exchange: Hold
) -> None:
    """On node-a, where the run folder lies, from the middle of the run on; the checkpoint before stays."""
    with small_disk(Path("small"), 4 << 20):
        running = started(hosts, *parted.arguments, "--out", "small/far", hold=in_exchange)
        in_exchange.wait(*running)
        begun = time.monotonic()
        rest = filled(Path("small"))
        in_exchange.release()
        first, second = ended(running)
        assert first.code
        assert second.code
        seconds = time.monotonic() - begun
        said("khop: .*No space left on device.*", first.errors, seconds=seconds)
        said(rf"{FULL}.*", second.errors, seconds=seconds)
        rest.unlink()
        outcomes = ended(started(hosts, "--resume", "small/far"))
        assert [outcome.code for outcome in outcomes] == [0, 0], outcomes
        assert_same_result("small/far", parted.undisturbed)
