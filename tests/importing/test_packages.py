"""Errors of DuckDB and Arrow are sentences of khop, and errors of the machine stay what they are."""

from __future__ import annotations

import errno

import duckdb
import pyarrow as pa
import pytest

from khop.importing.packages import reading


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
            "a.gz: has the value '$1' in the column b, which is no INT32; write it again",
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
