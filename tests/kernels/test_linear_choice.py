"""The way to compute layers follows from dtype, library and processor, unless the caller fixes it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from khop.kernels import linear_choice
from khop.kernels.linear_blocks import Blocks
from khop.kernels.linear_choice import LinearChoices, fixed_by, has_bfloat16_instructions


@pytest.mark.parametrize(
    ("dtype", "is_onednn_faster", "has_bfloat16", "expected"),
    [
        (torch.float32, True, False, "onednn:2048"),
        (torch.float32, False, True, "None"),
        (torch.float64, True, True, "blas:2048"),
        (torch.bfloat16, True, True, "None"),
        (torch.bfloat16, True, False, "onednn-float32:2048"),
        (torch.bfloat16, False, False, "blas-float32:2048"),
        (torch.float16, True, True, "None"),
    ],
    ids=str,
)
def test_the_rule_names_a_way_that_can_compute_the_dtype(
    monkeypatch: pytest.MonkeyPatch,
    dtype: torch.dtype,
    is_onednn_faster: bool,
    has_bfloat16: bool,
    expected: str,
) -> None:
    monkeypatch.setattr(linear_choice, "is_onednn_faster", lambda: is_onednn_faster)
    monkeypatch.setattr(linear_choice, "has_bfloat16_instructions", lambda: has_bfloat16)
    way = LinearChoices().blocks(dtype)
    assert str(way) == expected
    assert way is None or way.can_compute(dtype)


def test_a_fixed_way_is_taken_where_it_can_be_and_ends_with_its_block() -> None:
    choices = LinearChoices()
    by_rule = choices.blocks(torch.float32)
    with choices.fixed(Blocks("blas", 512, in_float32=True)):
        assert choices.blocks(torch.bfloat16) == Blocks("blas", 512, in_float32=True)
        assert choices.blocks(torch.float32) is None
        assert choices.setting == "blas-float32:512"
    assert choices.blocks(torch.float32) == by_rule
    assert choices.setting == "by the processor"


@pytest.mark.parametrize("name", ["blas:2048", "onednn-float32:4096"])
def test_a_way_has_a_name(name: str) -> None:
    assert str(fixed_by(name)) == name
    assert fixed_by("torch") is None


@pytest.mark.parametrize(
    "wrong", ["", "mkl", "blas", "blas:", "blas:-1", "blas:1", "torch:2048", "-float32:64"]
)
def test_other_names_are_refused(wrong: str) -> None:
    with pytest.raises(ValueError, match="must be"):
        fixed_by(wrong)


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ("model name : a\nflags\t\t: fpu avx512f avx512_bf16 sse\n", True),
        ("flags\t\t: fpu amx_bf16\n", True),
        ("Features\t: fp asimd bf16\n", True),
        ("flags\t\t: fpu avx512f\n", False),
        ("nothing\n", False),
        (None, False),
    ],
)
def test_processors_that_multiply_bfloat16_are_known_by_their_flags(
    facts: str | None, expected: bool, tmp_path: Path
) -> None:
    path = tmp_path / "cpuinfo"
    if facts is not None:
        path.write_text(facts)
    assert has_bfloat16_instructions(path) is expected
