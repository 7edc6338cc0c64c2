from __future__ import annotations

import json
from datetime import date
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pydantic import TypeAdapter

from khop.data.tables.encoders import WordsEncoder, fitter, restored, stored
from khop.data.tables.spec import AnyColumn


def where(row: int) -> str:
    return f"row {row + 1}"


CASES: list[tuple[Any, pa.Array]] = [
    ({"kind": "number", "flag": "missing"}, pa.array([1.0, None, 5.0])),
    ("category", pa.array(["a", None, "b"])),
    ({"kind": "category", "encoding": "embedding"}, pa.array(["a", None, "b"])),
    ({"kind": "multi", "separator": "|"}, pa.array(["a|b", None, ""])),
    ({"kind": "text", "width": 5}, pa.array(["a b", None, "c"])),
    ({"kind": "date", "timezone": "UTC"}, pa.array([date(2020, 1, 1), None, date(2021, 5, 5)])),
    ({"kind": "vector", "missing": "zero"}, pa.array([[1.0, 2.0], None, [3.0, 4.0]])),
    ("bool", pa.array([True, None, False])),
    ({"kind": "words", "words": 20}, pa.array(["a b", None, "c"])),
    ({"kind": "words", "separator": "|", "values": "one"}, pa.array(["a|b", None, ""])),
]


@pytest.mark.parametrize(("spec", "array"), CASES, ids=[str(spec) for spec, _ in CASES])
def test_a_stored_encoder_gives_the_same_bits(spec: object, array: pa.Array) -> None:
    one = fitter(TypeAdapter(AnyColumn).validate_python(spec), "column")
    one.add(array, where)
    encoder = one.encoder()
    again = restored(json.loads(json.dumps(stored(encoder))))
    values = encoder.encode(array, where).values
    shape = (2, encoder.longest) if isinstance(encoder, WordsEncoder) else (encoder.width,)
    assert values.shape == (3, *shape)
    assert values.dtype == (np.int32 if isinstance(encoder, WordsEncoder) else np.float32)
    assert np.array_equal(again.encode(array, where).values, values)
    assert encoder.encode(array.slice(0, 0), where).values.shape == (0, *shape)


def test_vectors_without_numbers_are_refused() -> None:
    with pytest.raises(ValueError, match="v: no training row has a number"):
        fitter(TypeAdapter(AnyColumn).validate_python("vector"), "v").encoder()
