"""Lines of the command while kernels of a GPU are compiled."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType

import pytest
import torch

from khop.cli import progress as kernels
from khop.cli.progress import CompilationLines, kernel_lines

CUDA = torch.device("cuda", 0)


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[Callable[[int], None]]:
    """A stand-in for the listener of Triton on a GPU that runs kernels: the functions that are told."""
    listening: list[Callable[[int], None]] = []

    @contextmanager
    def compilations_told(tell: Callable[[int], None]) -> Iterator[None]:
        listening.append(tell)
        yield
        listening.remove(tell)

    module = ModuleType("compilations")
    module.compilations_told = compilations_told  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "khop.kernels.triton.launch", module)
    monkeypatch.setattr(kernels, "why_no_kernels", lambda index: None)
    return listening


def test_a_cold_cache_is_shown_and_a_warm_one_is_not(
    told: list[Callable[[int], None]], capsys: pytest.CaptureFixture[str]
) -> None:
    with kernel_lines(0, CUDA):
        pass
    assert capsys.readouterr() == ("", "")
    with kernel_lines(0, CUDA):
        (tell,) = told
        tell(1)
    assert told == []
    assert capsys.readouterr().err == "khop: compiling GPU kernels, once on this machine: 1 so far\n"


def test_lines_follow_each_other_after_a_pause(capsys: pytest.CaptureFixture[str]) -> None:
    times = iter([0.0, 1.0, 1.0, 3.0, 5.9, 6.0, 6.0])
    lines = CompilationLines(lambda: next(times))
    for count in range(1, 5):
        lines(count)
    counts = [line.partition(": ")[2].split(": ")[1] for line in capsys.readouterr().err.splitlines()]
    assert counts == ["1 so far", "4 so far"]


@pytest.mark.parametrize(("rank", "device"), [(1, CUDA), (0, torch.device("cpu"))])
def test_only_rank_0_with_a_gpu_listens(
    told: list[Callable[[int], None]], rank: int, device: torch.device
) -> None:
    with kernel_lines(rank, device):
        assert told == []


def test_a_gpu_that_kernels_cannot_run_on_is_not_watched(
    told: list[Callable[[int], None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels, "why_no_kernels", lambda index: "Triton is too old")
    with kernel_lines(0, CUDA):
        assert told == []
