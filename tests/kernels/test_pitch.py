import pytest
import torch

from khop.kernels.pitch import accessible_width, empty_rows, flat_rows, padded_pitch

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("width", "dtype", "pitch"),
    [
        (100, torch.float32, 100),
        (100, torch.bfloat16, 104),
        (100, torch.int8, 112),
        (3, torch.float64, 4),
        (1, torch.int64, 1),
        (3, torch.float32, 3),
        (5, torch.float32, 8),
        (3, torch.complex128, 3),
        (0, torch.float32, 0),
    ],
)
def test_rows_of_16_bytes_and_more_are_padded_to_a_multiple_of_16(
    width: int, dtype: torch.dtype, pitch: int
) -> None:
    assert padded_pitch(width, dtype) == pitch


def test_rows_at_padded_pitch_have_the_shape_that_was_asked_for() -> None:
    rows = empty_rows(4, (3, 3), torch.float32, CPU)
    assert rows.shape == (4, 3, 3)
    assert rows.stride() == (12, 3, 1)
    assert flat_rows(rows).shape == (4, 9)
    assert flat_rows(rows).stride() == (12, 1)
    assert flat_rows(empty_rows(4, (), torch.int64, CPU)).shape == (4, 1)


def test_padding_is_accessible_where_there_is_some() -> None:
    padded = empty_rows(4, (9,), torch.float32, CPU)
    assert accessible_width(padded) == 12
    assert accessible_width(padded.contiguous()) == 9
    wide = torch.zeros(4, 12)
    assert accessible_width(wide[:, :9]) == 12
    assert accessible_width(wide[:, 3:]) == 9  # the last row ends with the storage
