"""A processor says what it multiplies."""

from __future__ import annotations

from pathlib import Path

import pytest

from khop.loading.cores import usable_cores
from khop.profiling.machine import has_fast_bfloat16, this_machine


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ("model name : a\nflags\t\t: fpu avx512f avx512_bf16 sse\n", True),
        ("flags\t\t: fpu amx_bf16\n", True),
        ("Features\t: fp asimd bf16\n", True),
        ("flags\t\t: fpu avx512f\n", False),
        ("nothing\n", False),
    ],
)
def test_processors_that_multiply_bfloat16_are_known_by_their_flags(
    facts: str, expected: bool, tmp_path: Path
) -> None:
    path = tmp_path / "cpuinfo"
    path.write_text(facts)
    assert has_fast_bfloat16("cpu", path) is expected


def test_a_machine_that_says_nothing_has_none(tmp_path: Path) -> None:
    assert not has_fast_bfloat16("cpu", tmp_path / "absent")


def test_the_cores_are_shared_by_the_ranks_of_a_machine() -> None:
    assert this_machine("cpu", 1).cores_per_rank == usable_cores()
    assert this_machine("cpu", 10_000).cores_per_rank == 1
