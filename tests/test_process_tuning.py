"""A script trains as fast as the command: its first epoch tunes the allocator and the waiting of OpenMP."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

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


@pytest.fixture(autouse=True)
def _is_tuned_again() -> Iterator[None]:
    """Let later tests of this process find the settings of its environment."""
    yield
    process_tuning.tune_memory.cache_clear()


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


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="a promise about Linux with glibc and GNU OpenMP")
@pytest.mark.parametrize("loader", ["khop", "pyg"])
def test_the_first_epoch_of_a_script_tunes_a_process_that_has_imported_torch(
    loader: str, tmp_path: Path
) -> None:
    (cpu_before, faults_before), (cpu, faults) = measured(tmp_path, loader)
    assert faults < 100 < faults_before  # 64 MiB are 16,384 fresh pages each time
    if len(os.sched_getaffinity(0)) > 1:
        assert cpu < cpu_before / 2  # idle threads of OpenMP no longer spin between two operators


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="a promise about Linux with glibc and GNU OpenMP")
def test_without_an_epoch_nothing_changes(tmp_path: Path) -> None:
    (_, faults_before), (_, faults) = measured(tmp_path, "none")
    assert min(faults, faults_before) > 100


@pytest.mark.long
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


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="only glibc has the settings")
def test_freed_memory_goes_back_where_it_is_scarce() -> None:
    done = subprocess.run(
        [sys.executable, "-c", KEPT], capture_output=True, text=True, check=False, env=UNTUNED
    )
    assert done.stdout.strip() == "[True, False, False, False]", done.stderr


def test_settings_of_the_user_stay_where_memory_is_scarce(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[object] = []
    monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", "0")
    monkeypatch.setattr(process_tuning.ctypes, "CDLL", calls.append)
    process_tuning.tune_memory.cache_clear()
    process_tuning.return_freed_memory()
    assert calls == []


WAITING, ELSEWHERE = 0x7F0000001234, 0x7FAAAAAAAAAA  # in the code of OpenMP, and in other code
CODE = [range(0x7F0000001000, 0x7F0000002000)]


def threads_in(folder: Path, monkeypatch: pytest.MonkeyPatch, *addresses: int | None) -> None:
    """Let threads that Python did not start wait at these addresses; None: it runs."""
    for number, address in enumerate(addresses, 1):
        (folder / str(number)).mkdir()
        text = "running" if address is None else f"202 0x1 0x80 0x0 0x0 0x0 0x0 0x7ffc00000000 {address:#x}"
        (folder / str(number) / "syscall").write_text(f"{text}\n")
    (folder / "999").mkdir()  # it has just ended
    (folder / str(threading.get_native_id())).mkdir()
    (folder / str(threading.get_native_id()) / "syscall").write_text("running\n")
    # As in a process that was forked, by Python 3.11.
    monkeypatch.setattr(threading.current_thread(), "_native_id", 1 << 22)
    monkeypatch.setattr(process_tuning, "_THREADS", folder)
    monkeypatch.setattr(process_tuning, "_code_of_openmp", lambda: CODE)
    monkeypatch.setattr(process_tuning, "SETTLE_S", 0.01)


@pytest.mark.parametrize(
    ("addresses", "expected"),
    [([ELSEWHERE, WAITING], True), ([ELSEWHERE], False), ([ELSEWHERE, None], True), ([], False)],
    ids=["waits for work", "waits for something else", "does not rest", "no thread"],
)
def test_a_fork_has_live_threads_of_openmp_if_one_waits_for_work_or_may_do_so(
    addresses: list[int | None], expected: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads_in(tmp_path, monkeypatch, *addresses)
    assert process_tuning._has_openmp_threads() == expected


def test_a_process_forked_from_live_threads_of_openmp_warns_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_tuning._Forks, "had_openmp", True)
    monkeypatch.setattr(process_tuning._Forks, "lost_openmp", False)
    monkeypatch.setattr(process_tuning._Forks, "warned", set())
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    process_tuning.check_fork()  # this is not the child
    process_tuning.after_fork()
    says = "^this process was forked from one with live threads of OpenMP: torch hangs or fails in it. "
    with pytest.warns(RuntimeWarning, match=says):
        process_tuning.check_fork()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        process_tuning.check_fork()


def test_a_rank_with_its_own_cores_shares_only_the_quota(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_tuning, "allowed_cores", lambda: 4)
    monkeypatch.setattr(process_tuning, "usable_cores", lambda cores=0: 6 if cores else 4)
    assert process_tuning.cores_of_rank(2) == 2
    monkeypatch.setattr(process_tuning._Bound, "has_own_cores", True)
    assert process_tuning.cores_of_rank(1) == 4
    assert process_tuning.cores_of_rank(2) == 3
