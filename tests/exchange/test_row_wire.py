"""Rows travel as they are stored, or rounded no further than is said."""

from __future__ import annotations

import pytest
import torch

from khop.exchange.row_wire import (
    Wire,
    as_bytes,
    is_rounded,
    of_bytes,
    planes,
    received_rows,
    rounded,
    sent_rows,
)
from khop.schema import ColumnSpec

COLUMNS = {
    "float32": torch.linspace(-3, 3, 42).view(7, 3, 2),
    "float64": torch.linspace(-3, 3, 14, dtype=torch.float64).view(7, 2),
    "bfloat16": torch.linspace(-3, 3, 14).view(7, 2).bfloat16(),
    "bool": torch.arange(7) % 2 == 0,
    "int64": torch.arange(7),
    "uint8": torch.arange(21, dtype=torch.uint8).view(7, 3),
}


@pytest.mark.parametrize("wire", Wire)
@pytest.mark.parametrize("dtype", COLUMNS)
def test_rows_come_through_bytes(dtype: str, wire: Wire) -> None:
    column = COLUMNS[dtype]
    spec = ColumnSpec(dtype, tuple(column.shape[1:]))
    content = torch.cat([piece for plane in sent_rows(column, spec, wire) for piece in as_bytes(plane)])
    sent = []
    for plane in planes(spec, wire):
        sent.append(of_bytes(content, plane, 7))
        content = content[plane.size(7) :]
    assert content.numel() == 0
    found = received_rows(sent, spec, wire)
    assert found.dtype == column.dtype
    assert torch.equal(found, rounded(column, spec, wire))
    if not is_rounded(spec, wire):
        assert torch.equal(found, column)
    else:
        assert dtype in ("float32", "float64")
        assert torch.allclose(found, column, atol=0.002 if wire is Wire.FLOAT16 else 3 / 254 + 1e-6)


def test_rows_of_zeros_and_of_no_numbers_stay_what_they_are() -> None:
    for shape in ((2, 3), (2, 0), (0, 3)):
        rows = torch.zeros(shape)
        assert torch.equal(rounded(rows, ColumnSpec("float32", shape[1:]), Wire.INT8), rows)


def test_a_single_number_is_never_rounded() -> None:
    assert not is_rounded(ColumnSpec("float32", ()), Wire.FLOAT16)
