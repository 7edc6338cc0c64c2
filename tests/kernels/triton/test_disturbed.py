"""Kernels pass their tests in any order of programs, in small blocks, over memory that was filled before."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from support.disturbed_kernels import disturbed

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the interpreter runs on the CPU")
QUICK = ("exclude_edges", "gather", "hash_table", "node_table", "sample_smallest", "sample_weighted", "words")


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", QUICK)
def test_kernels_pass_in_any_order_of_programs_and_over_filled_memory(name: str) -> None:
    done = disturbed(Path(__file__).parent / f"test_{name}.py")
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr


FAULTY = """
import torch, triton, triton.language as tl
from khop.kernels.triton.launch import launch
from support.triton_segments import by_triton

@triton.jit
def follow(x, out, far, BLOCK: tl.constexpr):
    at = tl.program_id(0)
    before = tl.load(out + at - 1, mask=at > 0, other=0)
    tl.store(out + at, before + 1)
    tl.load(x + at + far)

def launched(far):
    out = torch.zeros(8, dtype=torch.int64)
    with by_triton():
        launch(follow, 8, out, torch.zeros(8, dtype=torch.int64), out, far, BLOCK=1)
    return out

def test_programs_follow_each_other():
    assert launched(0).tolist() == list(range(1, 9))

def test_memory_is_zero():
    assert (torch.empty(8, dtype=torch.int64) == torch.iinfo(torch.int64).max).sum() == 0

def test_reads_are_inside():
    launched(1)
"""


@pytest.mark.long
def test_the_plugin_shows_a_kernel_that_needs_an_order_zeros_or_memory_of_others(tmp_path: Path) -> None:
    (tmp_path / "test_faulty.py").write_text(FAULTY)
    done = disturbed(tmp_path / "test_faulty.py")
    assert "3 failed" in done.stdout, done.stdout + done.stderr
    assert "IndexError" in done.stdout
