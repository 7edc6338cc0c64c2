from __future__ import annotations

import subprocess
import sys
import warnings
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError

import pytest
import torch

from khop.kernels import choice
from khop.kernels.choice import Engine, engine, forcing, why_no_kernels

CUDA = torch.device("cuda", 0)


@pytest.fixture(autouse=True)
def _nothing_remembered() -> Iterator[None]:
    for remembered in (choice.engine, choice.why_no_kernels, choice._warn):
        remembered.cache_clear()
    yield
    for remembered in (choice.engine, choice.why_no_kernels, choice._warn):
        remembered.cache_clear()


def have_gpu(
    monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int] = (9, 0), triton: str = "3.6.0"
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: capability)
    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.setattr(choice, "version", lambda package: triton)


def test_the_cpu_takes_the_core_and_devices_without_kernels_take_torch() -> None:
    assert engine(torch.device("cpu")) is Engine.NATIVE
    assert engine(torch.device("meta")) is Engine.TORCH


def test_a_gpu_of_the_least_capability_takes_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    have_gpu(monkeypatch, (8, 0), "3.3.1")
    assert engine(CUDA) is Engine.TRITON


@pytest.mark.parametrize(
    ("capability", "triton", "reason"),
    [
        ((7, 5), "3.6.0", r"compute capability 7\.5, and 8\.0 \(A100\) is the least"),
        ((9, 0), "3.2.0", r"Triton 3\.2 is too old; install torch 2\.7 or later"),
    ],
)
def test_a_gpu_without_support_takes_torch_and_says_why_once(
    monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], triton: str, reason: str
) -> None:
    have_gpu(monkeypatch, capability, triton)
    with pytest.warns(RuntimeWarning, match=f"no kernels for cuda:0: {reason}"):
        assert engine(CUDA) is Engine.TORCH
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert engine(CUDA) is Engine.TORCH


def test_a_missing_triton_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(package: str) -> str:
        raise PackageNotFoundError(package)

    monkeypatch.setattr(choice, "version", missing)
    assert why_no_kernels() == "Triton is not installed; install a torch with CUDA, 2.7 or later"


def test_a_driver_that_torch_cannot_use_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    have_gpu(monkeypatch)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert why_no_kernels(0) == "torch finds no usable GPU; check the driver by `nvidia-smi`"


def test_a_forced_engine_holds_inside_its_block() -> None:
    with forcing(Engine.TORCH):
        assert engine(torch.device("cpu")) is Engine.TORCH
    assert engine(torch.device("cpu")) is Engine.NATIVE


def test_importing_khop_imports_no_triton() -> None:
    code = "import sys, khop, khop.kernels.choice; sys.exit('triton' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
