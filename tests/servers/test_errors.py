"""Errors travel by code and arrive as the same class, and each says who may be asked next."""

from __future__ import annotations

import pytest
import torch

from khop.servers.errors import (
    Busy,
    InvalidRequest,
    MachineFailed,
    Retry,
    ServerError,
    TooLarge,
    Unavailable,
    as_server_error,
    of_code,
)


@pytest.mark.core(6)
@pytest.mark.parametrize("kind", ServerError.__subclasses__(), ids=lambda kind: kind.code)
def test_an_error_arrives_as_the_same_class_with_its_text(kind: type[ServerError]) -> None:
    arrived = of_code(kind.code, "the disk is gone")
    assert type(arrived) is kind
    assert str(arrived) == "the disk is gone"


def test_codes_differ() -> None:
    codes = [kind.code for kind in ServerError.__subclasses__()]
    assert sorted(set(codes)) == sorted(codes)


def test_an_unknown_code_is_not_tried_again() -> None:
    arrived = of_code("from-the-future", "no such thing here")
    assert isinstance(arrived, InvalidRequest)
    assert arrived.retry is Retry.NEVER


def test_another_server_may_answer_where_the_fault_is_of_the_machine_or_the_way() -> None:
    assert (Unavailable.retry, MachineFailed.retry, Busy.retry) == (
        Retry.ELSEWHERE,
        Retry.ELSEWHERE,
        Retry.LATER,
    )


@pytest.mark.parametrize(
    ("raised", "kind"),
    [
        (ValueError("seeds of 'user': not a node type"), InvalidRequest),
        (FileNotFoundError("x.npy"), MachineFailed),
        (MemoryError("no limits"), MachineFailed),
        (RuntimeError("[enforce] DefaultCPUAllocator: can't allocate memory: 9 bytes"), MachineFailed),
        (RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 9"), MachineFailed),
        (RuntimeError("std::bad_alloc"), MachineFailed),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"), MachineFailed),
        (RuntimeError("can't start new thread"), MachineFailed),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), InvalidRequest),
        (KeyError("x"), InvalidRequest),
        (TooLarge("2 GB"), TooLarge),
    ],
)
def test_exceptions_of_a_server_are_sent_by_their_kind(raised: Exception, kind: type[ServerError]) -> None:
    assert type(as_server_error(raised)) is kind


def test_memory_that_torch_cannot_allocate_is_about_the_machine() -> None:
    with pytest.raises(RuntimeError) as refused:
        torch.empty(1 << 60, dtype=torch.uint8)
    assert isinstance(as_server_error(refused.value), MachineFailed)


def test_the_kinds_that_scripts_catch_stay() -> None:
    assert isinstance(of_code("invalid", ""), ValueError)
    assert isinstance(of_code("machine", ""), OSError)
    assert isinstance(of_code("unauthenticated", ""), PermissionError)
