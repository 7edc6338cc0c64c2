"""Values of Arrow arrays are those of pyarrow's own conversion, and pandas is not imported for them."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pyarrow as pa
import pytest

from khop.importing.arrow_values import numpy_of

NUMBERS = [pa.int8(), pa.int64(), pa.uint16(), pa.uint64(), pa.float16(), pa.float32(), pa.float64()]
ARRAYS = [pa.array(np.arange(9), pa.int64()).cast(dtype) for dtype in NUMBERS]
ARRAYS += [
    pa.array([True, False, False, True, True] * 4),
    pa.array([2.5, None, -1.0]),
    pa.array([1, None, 3]),
]
ARRAYS += [pa.array([1.5, None], pa.float32()), pa.array([], pa.int32()), pa.array([], pa.bool_())]
ARRAYS += [
    pa.array([True, None, False]),
    pa.array(["a", None]),
    pa.array([0, 86_400], pa.timestamp("s", "UTC")),
]


@pytest.mark.parametrize("array", ARRAYS, ids=lambda array: str(array.type))
def test_values_and_dtypes_are_those_of_pyarrow(array: pa.Array) -> None:
    for part in (array, array[1:], array[2:2]):
        found, expected = numpy_of(part), part.to_numpy(zero_copy_only=False)
        assert found.dtype == expected.dtype
        np.testing.assert_array_equal(found, expected)


def test_numbers_do_not_import_pandas() -> None:
    script = (
        "import sys, pyarrow as pa; from khop.importing.arrow_values import numpy_of; "
        "column = pa.nulls(3, pa.float64()); numpy_of(column); numpy_of(column.is_null()); "
        "print('pandas' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "False"
