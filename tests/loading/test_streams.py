"""The calls of a GPU's runtime: found in the loaded libraries, used by the pool of results."""

from __future__ import annotations

import ctypes
import os

import pytest
import torch

from khop.kernels.memory import pinned_pool_bytes
from khop.loading.streams import _address, pin_pool, streams_of


def test_without_the_runtime_nothing_is_pinned() -> None:
    asked: list[str] = []

    def missing(name: str) -> int | None:
        asked.append(name)
        return None if name.endswith("HostRegister") else 1

    before = pinned_pool_bytes()
    assert not pin_pool(0, missing)
    assert asked[0] in ("cudaSetDevice", "hipSetDevice")
    assert pinned_pool_bytes() == before


@pytest.mark.skipif(torch.version.cuda is not None, reason="where torch has no CUDA")
def test_a_runtime_that_is_not_loaded_is_not_found() -> None:
    assert not pin_pool(0)


def test_an_address_is_that_of_a_loaded_function() -> None:
    found = _address("getpid")
    assert found is not None
    assert ctypes.CFUNCTYPE(ctypes.c_int)(found)() == os.getpid()


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_copies_to_the_host_need_no_streams(device: str) -> None:
    assert streams_of(torch.device(device)) is None
