from __future__ import annotations

import re
import subprocess
import sys
import warnings
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest
import torch

from khop.kernels import card, choice
from khop.kernels.choice import Engine, engine, forcing, reason_of, why_no_kernels, why_not_built

CUDA = torch.device("cuda", 0)


@pytest.fixture(autouse=True)
def _nothing_remembered(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setenv("KHOP_CACHE", str(tmp_path))
    for remembered in (choice.engine, choice.why_no_kernels, choice._warn):
        remembered.cache_clear()
    yield
    choice._distrusted.clear()
    for remembered in (choice.engine, choice.why_no_kernels, choice._warn):
        remembered.cache_clear()


def have_gpu(
    monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int] = (9, 0), triton: str = "3.6.0"
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: capability)
    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.setattr(card, "version", lambda package: triton)
    monkeypatch.setattr(choice, "card_key", lambda index: "a card")
    monkeypatch.setattr(choice, "why_not_built", lambda device: None)


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

    monkeypatch.setattr(card, "version", missing)
    assert why_no_kernels() == "Triton is not installed; install a torch with CUDA, 2.7 or later"


def test_a_driver_that_torch_cannot_use_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    have_gpu(monkeypatch)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert why_no_kernels(0) == "torch finds no usable GPU; check the driver by `nvidia-smi`"


def test_a_forced_engine_holds_inside_its_block() -> None:
    with forcing(Engine.TORCH):
        assert engine(torch.device("cpu")) is Engine.TORCH
    assert engine(torch.device("cpu")) is Engine.NATIVE


@pytest.mark.long
def test_importing_khop_imports_no_triton() -> None:
    code = "import sys, khop, khop.kernels.choice; sys.exit('triton' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_kernel_that_was_built_once_is_not_built_again(monkeypatch: pytest.MonkeyPatch) -> None:
    have_gpu(monkeypatch)
    built: list[torch.device] = []
    monkeypatch.setattr(choice, "why_not_built", built.append)
    for _ in range(2):  # two processes
        why_no_kernels.cache_clear()
        assert why_no_kernels(0) is None
    assert built == [CUDA]


def test_a_kernel_that_could_not_be_built_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    have_gpu(monkeypatch)
    reasons = iter(["Triton finds no C compiler; install gcc", None])
    monkeypatch.setattr(choice, "why_not_built", lambda device: next(reasons))
    with pytest.warns(RuntimeWarning, match="no kernels for cuda:0: Triton finds no C compiler; install gcc"):
        assert engine(CUDA) is Engine.TORCH
    why_no_kernels.cache_clear()
    engine.cache_clear()
    assert engine(CUDA) is Engine.TRITON


def test_kernels_that_are_not_trusted_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    have_gpu(monkeypatch)
    assert engine(CUDA) is Engine.TRITON
    choice.distrust(CUDA, "gather: 1 of 9 numbers differ")
    with pytest.warns(RuntimeWarning, match="no kernels for cuda:0: gather: 1 of 9 numbers differ; draws"):
        assert engine(CUDA) is Engine.TORCH


@pytest.mark.skipif(torch.cuda.is_available(), reason="the interpreter builds nothing that could fail")
def test_the_trial_runs_a_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu = torch.device("cpu")
    assert why_not_built(cpu) is None
    monkeypatch.setattr("khop.kernels.triton.launch.launch", lambda *operands, **constants: None)
    assert (
        why_not_built(cpu)
        == "a kernel could not be built: RuntimeError: a kernel that copies numbers returned other numbers"
    )


def test_a_missing_compiler_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    build = pytest.importorskip("triton.runtime.build")
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(RuntimeError) as error:
        build.compile_module_from_src("int x;", "khop_trial")
    assert reason_of(error.value).startswith("Triton finds no C compiler; install gcc")


def test_missing_headers_of_python_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(choice.sysconfig, "get_path", lambda name: str(tmp_path))
    error = subprocess.CalledProcessError(1, ["gcc"])
    assert reason_of(error).startswith("Triton needs Python.h, which is missing; install Python's headers")
    (tmp_path / "Python.h").touch()
    assert reason_of(error).startswith("a kernel could not be built: CalledProcessError")


def test_a_cache_folder_that_cannot_be_written_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    build = pytest.importorskip("triton.runtime.build")
    (tmp_path / "file").touch()
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "file"))
    with pytest.raises(OSError, match="file") as error:
        build.compile_module_from_src("int khop_x;", "khop_trial")
    assert re.fullmatch(
        rf"Triton cannot use {tmp_path}/file\S*: .*; let TRITON_CACHE_DIR name a folder that can be written",
        reason_of(error.value),
    )
