"""Single arguments: valid ones come back in one type, others raise with value and limits."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from khop.arguments import (
    LARGEST_INT64,
    LARGEST_SEED,
    one_of,
    path_of,
    real_number,
    seed_number,
    shown,
    truth,
    whole_number,
)


class Color(StrEnum):
    RED = "red"
    BLUE = "blue"


@given(value=st.integers(-(1 << 70), 1 << 70), least=st.integers(-5, 5), most=st.integers(5, 1 << 20))
def test_a_whole_number_is_within_its_limits(value: int, least: int, most: int) -> None:
    if least <= value <= most:
        assert whole_number("n", value, least, most) == value
        assert type(whole_number("n", np.int64(value), least, most)) is int
    else:
        with pytest.raises(ValueError, match=rf"^n {value}: must be a whole number from {least} to {most}"):
            whole_number("n", value, least, most)


@pytest.mark.parametrize("value", [True, 2.0, "2", None, b"2", np.bool_(True), torch.tensor(2)])
def test_only_integers_are_whole_numbers(value: object) -> None:
    with pytest.raises(ValueError, match="must be a whole number"):
        whole_number("n", value)


def test_seeds_have_64_bits_and_other_numbers_63() -> None:
    assert seed_number(LARGEST_SEED) == LARGEST_SEED
    with pytest.raises(ValueError, match="seed -1"):
        seed_number(-1)
    with pytest.raises(ValueError, match="within 64 bits"):
        whole_number("n", LARGEST_INT64 + 1)


def test_numbers_booleans_and_paths_are_not_text() -> None:
    assert real_number("x", np.float32(0.5)) == 0.5
    assert truth("flag", np.bool_(False)) is False
    assert path_of("path", "a/b") == Path("a/b")
    for check, value in ((real_number, "0.5"), (real_number, True), (truth, 1), (path_of, 5)):
        with pytest.raises(ValueError, match=r"^v .*: must be"):
            check("v", value)


def test_a_choice_is_a_member_or_its_name() -> None:
    assert one_of("color", "red", Color) is one_of("color", Color.RED, Color) is Color.RED
    with pytest.raises(ValueError, match="color 'green': must be one of 'red', 'blue'"):
        one_of("color", "green", Color)


def test_long_values_are_shown_by_their_type() -> None:
    assert shown([1, 2]) == "[1, 2]"
    assert shown(list(range(100))) == "of type list"
    assert shown(torch.zeros(2, 2)) == "of type Tensor"
