"""What the command does about its process's memory, and what the library does not."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import pytest

import khop
from khop import process_memory
from khop.cli import start

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(khop.__file__).parents[1])}
# Page faults of filling a tensor of 64 MiB once more, after others of its size came and went.
FAULTS = """
import resource, sys, khop
if sys.argv[1] == "tuned":
    khop.tune_process()
import torch
khop.NeighborSampler, khop.Loader, khop.Trainer
for _ in range(3):
    torch.ones(1 << 24)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
torch.ones(1 << 24)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(how: str) -> int:
    untuned = {name: value for name, value in ENVIRONMENT.items() if name != "GLIBC_TUNABLES"}
    finished = subprocess.run(
        [sys.executable, "-c", FAULTS, how], env=untuned, capture_output=True, text=True, check=True
    )
    return int(finished.stdout)


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "gnu_get_libc_version"), reason="a promise about glibc")
def test_large_tensors_reuse_memory_after_it_and_not_before() -> None:
    """Importing and using khop changes nothing: 64 MiB are 16,384 fresh pages each time."""
    assert faults("tuned") < 100 < faults("as it was")


def test_another_c_library_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_memory.ctypes, "CDLL", lambda name: object())
    assert not process_memory.tune_memory()


@pytest.mark.parametrize(
    ("variable", "value", "is_tuned"),
    [
        ("GLIBC_TUNABLES", "glibc.cpu.hwcaps=-AVX2", True),
        ("GLIBC_TUNABLES", "glibc.malloc.mmap_threshold=1048576", False),
        ("MALLOC_TRIM_THRESHOLD_", "0", False),
        ("LD_PRELOAD", "libjemalloc.so", False),
    ],
)
def test_the_command_tunes_unless_the_environment_has(
    variable: str, value: str, is_tuned: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[bool] = []
    for name in ("GLIBC_TUNABLES", "LD_PRELOAD"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(variable, value)
    monkeypatch.setattr(start, "tune_memory", lambda: calls.append(True))
    with pytest.raises(SystemExit):
        start.run(["--version"])
    assert bool(calls) == is_tuned
