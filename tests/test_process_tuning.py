"""A script trains as fast as the command: its first epoch tunes the allocator and the waiting of OpenMP."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

import khop
from khop import process_tuning
from khop.cli import start

SETTINGS = {*process_tuning._WAITING, *process_tuning._ALLOCATION, "GLIBC_TUNABLES", "OMP_NUM_THREADS"}
UNTUNED = {name: value for name, value in os.environ.items() if name not in SETTINGS}

# CPU time and page faults of work on large tensors, before and after the first epoch.
SCRIPT = """
import json, resource, sys, time
import torch
import khop

def used():
    for _ in range(3):
        torch.ones(1 << 24)
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    torch.ones(1 << 24)
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults
    small = torch.ones(1 << 18)
    start = time.process_time()
    for _ in range(100):
        small.add_(1)
        time.sleep(0.003)
    return [time.process_time() - start, faults]

ends = torch.randint(100, (2, 1000))
graph = khop.open_graph(khop.write_graph(
    sys.argv[1],
    {"node": khop.NodeTable(100, {"x": torch.ones(100, 4)})},
    {("node", "to", "node"): khop.EdgeTable(*ends)},
))
before = used()
if sys.argv[2] == "khop":
    for batch in khop.Loader(khop.NeighborSampler(graph, [2]), torch.arange(100), 50, columns=["x"]):
        pass
elif sys.argv[2] == "pyg":
    from khop.pyg import NeighborLoader
    for batch in NeighborLoader(khop.graph_to_pyg(graph), [2], batch_size=50):
        pass
print(json.dumps([before, used()]))
"""


def measured(folder: Path, loader: str, **environment: str) -> tuple[list[float], list[float]]:
    finished = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(folder / "graph"), loader],
        env={**UNTUNED, "PYTHONPATH": str(Path(khop.__file__).parents[1]), **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    assert finished.stderr == ""
    before, after = json.loads(finished.stdout.splitlines()[-1])
    return before, after


@pytest.mark.skipif(sys.platform != "linux", reason="a promise about Linux with glibc and GNU OpenMP")
@pytest.mark.parametrize("loader", ["khop", "pyg"])
def test_the_first_epoch_of_a_script_tunes_a_process_that_has_imported_torch(
    loader: str, tmp_path: Path
) -> None:
    (cpu_before, faults_before), (cpu, faults) = measured(tmp_path, loader)
    assert faults < 100 < faults_before  # 64 MiB are 16,384 fresh pages each time
    if len(os.sched_getaffinity(0)) > 1:
        assert cpu < cpu_before / 2  # idle threads of OpenMP no longer spin between two operators


@pytest.mark.skipif(sys.platform != "linux", reason="a promise about Linux with glibc and GNU OpenMP")
def test_without_an_epoch_nothing_changes(tmp_path: Path) -> None:
    (_, faults_before), (_, faults) = measured(tmp_path, "none")
    assert min(faults, faults_before) > 100


def test_variables_of_the_environment_take_precedence(tmp_path: Path) -> None:
    own = {"OMP_WAIT_POLICY": "active", "GLIBC_TUNABLES": "glibc.malloc.mmap_threshold=1048576"}
    (cpu_before, faults_before), (cpu, faults) = measured(tmp_path, "khop", **own)
    assert min(faults, faults_before) > 100
    if len(os.sched_getaffinity(0)) > 1:
        assert cpu > cpu_before / 2


def test_an_openmp_that_cannot_be_set_is_one_warning_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in process_tuning._WAITING:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(process_tuning, "rest_openmp", lambda: False)
    process_tuning.tune_for_training.cache_clear()
    with pytest.warns(UserWarning, match="^idle OpenMP threads use .*: export OMP_WAIT_POLICY=passive$"):
        process_tuning.tune_for_training()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        process_tuning.tune_for_training()


def test_another_c_library_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_tuning.ctypes, "CDLL", lambda name: object())
    process_tuning.tune_memory.cache_clear()
    assert not process_tuning.tune_memory()
    process_tuning.tune_memory.cache_clear()


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "gnu_get_libc_version"), reason="a promise about glibc")
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
    for name in (*process_tuning._ALLOCATION, "GLIBC_TUNABLES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(variable, value)
    process_tuning.tune_memory.cache_clear()
    with pytest.raises(SystemExit):
        start.run(["--version"])
    assert process_tuning.tune_memory() == is_tuned


KEPT = """
import torch
from khop.kernels.memory import own_memory_bytes
from khop.process_tuning import return_freed_memory, tune_memory

assert tune_memory()
before, sizes = own_memory_bytes(), []
for _ in range(2):
    block = torch.ones(1 << 24)
    del block
    sizes.append(own_memory_bytes() - before > 1 << 25)
    return_freed_memory()
    sizes.append(own_memory_bytes() - before > 1 << 25)
print(sizes)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only glibc has the settings")
def test_freed_memory_goes_back_where_it_is_scarce() -> None:
    done = subprocess.run(
        [sys.executable, "-c", KEPT], capture_output=True, text=True, check=False, env=UNTUNED
    )
    assert done.stdout.strip() == "[True, False, False, False]", done.stderr
