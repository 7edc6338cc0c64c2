"""Errors of DuckDB and Arrow are sentences of khop, and errors of the machine stay what they are.

Values of Arrow arrays are those of pyarrow's own conversion, and pandas is not imported for them.
"""

from __future__ import annotations

import errno
import subprocess
import sys
from collections.abc import Callable

import duckdb
import numpy as np
import pyarrow as pa
import pytest

from khop.data.tables.packages import driver, numpy_of, plain, reading, without_blanks


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (pa.ArrowInvalid("Truncated compressed stream"), "a.gz: is cut off; write it again"),
        (OSError("IO Error: Unexpected end of GZIP stream: a.gz"), "a.gz: is cut off; write it again"),
        (
            pa.ArrowNotImplementedError("no such cast"),
            "a.gz: is damaged, or has another format; write it again",
        ),
        (
            duckdb.ConversionException(
                "Could not convert string '$1' to INT32 when casting from source column b"
            ),
            "a.gz: has the value '$1' in the column b, which is not of type INT32; write it again",
        ),
        (
            duckdb.IOException("Could not set lock on file"),
            "a.gz: is open elsewhere for writing; write it again",
        ),
    ],
    ids=lambda value: type(value).__name__,
)
def test_an_error_of_a_package_is_a_sentence_without_its_text(error: Exception, said: str) -> None:
    with pytest.raises(ValueError) as caught, reading("a.gz", "write it again"):  # noqa: PT011
        raise error
    assert (type(caught.value), str(caught.value)) == (ValueError, said)
    assert caught.value.__suppress_context__


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left", "a"), ValueError("id is null")])
def test_other_errors_pass(error: Exception) -> None:
    with pytest.raises(type(error)) as caught, reading("a.gz", "write it again"):
        raise error
    assert caught.value is error


@pytest.mark.parametrize("error", [duckdb.OutOfMemoryException("1 GB"), pa.ArrowMemoryError("1 GB")])
def test_too_little_memory_is_said_as_such(error: Exception) -> None:
    with pytest.raises(MemoryError, match=r"^a.gz$"), reading("a.gz", "write it again"):
        raise error


def test_a_missing_driver_is_named_with_its_installation(monkeypatch: pytest.MonkeyPatch) -> None:
    assert driver("sqlite").connect is not None
    monkeypatch.setitem(sys.modules, "adbc_driver_sqlite.dbapi", None)
    with pytest.raises(
        ValueError, match="SQLite needs a package that is missing: pip install adbc-driver-sqlite"
    ):
        driver("sqlite")


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


@pytest.mark.core(6)
@pytest.mark.parametrize("array", ARRAYS, ids=lambda array: str(array.type))
def test_values_and_dtypes_are_those_of_pyarrow(array: pa.Array) -> None:
    for part in (array, array[1:], array[2:2]):
        found, expected = numpy_of(part), part.to_numpy(zero_copy_only=False)
        assert found.dtype == expected.dtype
        np.testing.assert_array_equal(found, expected)


@pytest.mark.long
def test_numbers_do_not_import_pandas() -> None:
    script = (
        "import sys, pyarrow as pa; from khop.data.tables.packages import numpy_of; "
        "column = pa.nulls(3, pa.float64()); numpy_of(column); numpy_of(column.is_null()); "
        "print('pandas' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "False"


@pytest.mark.long
def test_a_notebook_sees_no_progress_of_duckdb() -> None:
    asked = "SELECT value FROM duckdb_settings() WHERE name = 'enable_progress_bar'"
    program = f"""
import duckdb
from khop.data.tables.packages import connected
for connection in (duckdb.connect(), connected(), connected().cursor()):
    print(connection.execute({asked!r}).fetchone()[0])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["true", "false", "false"]  # the first: what there would be


def test_blanks_at_both_ends_do_not_depend_on_other_rows() -> None:
    texts = ["a", "b ", "c\u00a0", "\u3000d e\t", "é", None, ""]
    want = ["a", "b", "c", "d e", "é", None, ""]
    assert without_blanks(pa.array(texts)).to_pylist() == want
    assert [without_blanks(pa.array([one], pa.string()))[0].as_py() for one in texts] == want
    assert without_blanks(pa.array([1, 2])).to_pylist() == [1, 2]
    assert without_blanks(pa.array([], pa.string())).to_pylist() == []


@pytest.mark.parametrize("kind", [pa.list_, pa.large_list, pa.list_view, pa.large_list_view])
def test_lists_keep_their_rows_without_python_objects(kind: Callable[[pa.Field], pa.DataType]) -> None:
    rows = [[0.5, 1.5], None, [], [2.5], [3.5, 4.5]]
    lists = pa.array(rows, kind(pa.field("element", pa.float32(), nullable=False)))
    for first in range(len(rows)):
        made = plain(lists.slice(first, 3))
        made.validate(full=True)
        assert made.to_pylist() == rows[first : first + 3]
        assert made.type in (pa.list_(pa.float32()), pa.large_list(pa.float32()))


def test_uuids_in_lists_are_text() -> None:
    uuids = pa.ExtensionArray.from_storage(pa.uuid(), pa.array([bytes(15) + b"\1"] * 2, pa.binary(16)))
    lists = pa.ListArray.from_arrays(pa.array([0, 0, 2], pa.int32()), uuids)
    assert plain(lists).to_pylist() == [[], ["00000000-0000-0000-0000-000000000001"] * 2]
