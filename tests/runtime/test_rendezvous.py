"""A process becomes a rank for a block, reports its error to the board, and leaves; here it is alone."""

from __future__ import annotations

import pytest
import torch
from torch import distributed

from khop.runtime.group import ALONE, Group, this_group
from khop.runtime.interfaces import Interface
from khop.runtime.launchers import RankInfo
from khop.runtime.rendezvous import joined
from support.commands import free_port

LOOPBACK = Interface("lo", "127.0.0.1")
CPU = torch.device("cpu")


def info(port: int) -> RankInfo:
    return RankInfo(rank=0, world_size=1, local_rank=0, local_world_size=1, host="127.0.0.1", port=port)


def test_inside_the_block_the_process_is_a_rank() -> None:
    left: list[str] = []
    with joined(info(free_port()), CPU, 30.0, LOOPBACK) as group:
        assert this_group() is group
        assert distributed.get_world_size() == 1
        group.before_leaving.append(lambda: left.append("settled"))
        group.barrier()
    assert left == ["settled"]
    assert this_group() is ALONE
    assert not distributed.is_initialized()


@pytest.mark.parametrize("error", [KeyError("own"), KeyboardInterrupt(), SystemExit(0)], ids=str)
def test_after_an_error_the_process_is_no_rank(error: BaseException) -> None:
    groups: list[Group] = []
    with pytest.raises(type(error)):
        fail(groups, error)
    assert this_group() is ALONE
    assert not distributed.is_initialized()
    (group,) = groups
    assert group.watch is not None


def fail(groups: list[Group], error: BaseException) -> None:
    with joined(info(free_port()), CPU, 30.0, LOOPBACK) as group:
        groups.append(group)
        raise error


def test_a_port_that_is_taken_is_named() -> None:
    port = free_port()
    with joined(info(port), CPU, 30.0, LOOPBACK), pytest.raises(OSError, match=str(port)):
        joined(info(port), CPU, 30.0, LOOPBACK).__enter__()


@pytest.mark.parametrize(("device", "backend"), [("cpu", "gloo"), ("cuda", "cpu:gloo,cuda:nccl")])
def test_gpus_exchange_over_nccl_and_control_stays_on_gloo(
    monkeypatch: pytest.MonkeyPatch, device: str, backend: str
) -> None:
    chosen: list[str] = []

    def initialized(backend: str, **_: object) -> None:
        chosen.append(backend)
        raise KeyError("no group is needed here")

    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    monkeypatch.setattr(distributed, "init_process_group", initialized)
    with pytest.raises(KeyError, match="no group is needed here"):
        joined(info(free_port()), torch.device(device), 30.0, LOOPBACK).__enter__()
    assert chosen == [backend]
