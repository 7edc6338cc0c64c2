"""A child that was forked from a process with live threads of OpenMP is told so; no other is."""

from __future__ import annotations

import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch

from khop import process_tuning as forks
from khop.process_tuning import check_fork
from support.commands import ENVIRONMENT
from support.small_folders import write_learnable_graph

pytestmark = pytest.mark.real_start

# As DGL's tutorial on several processes, but the parent has only imported khop.
SCRIPT = """
import multiprocessing, sys
import torch
import khop

def make_loader(folder):
    graph = khop.open_graph(folder)
    for _ in range(2):
        khop.Loader(khop.NeighborSampler(graph, fanouts=[2]), seeds=graph.split("train"), batch_size=8)
    print("made", flush=True)

class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 2
    def __getitem__(self, index):
        return index

if __name__ == "__main__":
    how, start, folder = sys.argv[1:]
    torch.set_num_threads(2)
    if how == "used":
        (torch.ones(1 << 20) + 1).sum()
    if start == "workers":
        list(torch.utils.data.DataLoader(Rows(), num_workers=1))
    else:
        child = multiprocessing.get_context(start).Process(target=make_loader, args=(folder,))
        child.start()
        child.join()
        assert child.exitcode == 0
"""


def told(folder: Path, how: str, start: str) -> list[str]:
    """The warnings of a script, one by one."""
    script = folder / "script.py"
    script.write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, "-W", "always::RuntimeWarning", script, how, start, folder / "toy"],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert start == "workers" or done.stdout == "made\n"
    return [line for line in done.stderr.splitlines() if "Warning" in line]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_learnable_graph(tmp_path / "toy")
    return tmp_path


def test_one_warning_names_the_cause_and_the_way_out(folder: Path) -> None:
    (warning,) = told(folder, "used", "fork")
    assert (
        "script.py:9: RuntimeWarning: this process was forked from one with live threads of OpenMP" in warning
    )
    assert "khop.launch" in warning


@pytest.mark.parametrize(
    ("how", "start"), [("fresh", "fork"), ("used", "spawn"), ("used", "forkserver"), ("used", "workers")]
)
def test_nothing_is_said_of_processes_that_work(folder: Path, how: str, start: str) -> None:
    assert told(folder, how, start) == []


def test_a_fork_with_cuda_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's own word for it is set: the fork itself needs a GPU."""
    monkeypatch.setattr(forks._Forks, "warned", set())
    monkeypatch.setattr(torch.cuda, "_is_in_bad_fork", lambda: True)
    with pytest.warns(RuntimeWarning, match="forked from one with CUDA initialized"):
        check_fork()
    with warnings.catch_warnings(action="error"):
        check_fork()


def test_threads_of_openmp_are_recognized() -> None:
    script = """
import torch
from khop.process_tuning import _has_openmp_threads
torch.set_num_threads(2)
print(_has_openmp_threads())
(torch.ones(1 << 20) + 1).sum()
print(_has_openmp_threads())
"""
    done = subprocess.run([sys.executable, "-c", script], env=ENVIRONMENT, capture_output=True, text=True)
    assert done.stdout == "False\nTrue\n", done.stderr
