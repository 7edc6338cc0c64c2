"""The optional packages of the import: how to install them, and their errors as sentences."""

from __future__ import annotations

import re
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager

INSTALL = "khop import needs pyarrow and duckdb: pip install pyarrow duckdb"

try:
    import duckdb
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.csv as pa_csv
    import pyarrow.parquet as pq
except ImportError as error:
    raise ImportError(f"{INSTALL} ({error})") from None

__all__ = ["INSTALL", "PACKAGE_ERRORS", "duckdb", "explained", "pa", "pa_csv", "pc", "pq", "reading"]

PACKAGE_ERRORS = (duckdb.Error, pa.lib.ArrowException)  # ArrowInvalid is a ValueError, too
_DAMAGE = (EOFError, UnicodeError, zipfile.BadZipFile, zlib.error)
_OF_FILE = {
    FileNotFoundError: "no such file",
    IsADirectoryError: "is a folder",
    PermissionError: "is not readable for this user",
}
_REASONS = {
    r"Row #(\d+): Expected (\d+) columns, got (\d+)": r"row \1 has \3 fields, and the first row has \2",
    r"Expected (\d+) columns, got (\d+)": r"a row has \2 fields, and the first row has \1",
    r"In CSV column #(\d+): (?:Row #(\d+): )?.* invalid value '(.*)'": (
        r"the value '\3' in the column \1 is not a number"
    ),
    r"end of GZIP|Truncated compressed|[Uu]nexpected end|enough bytes": "is cut off",
    r"incorrect header check|Unknown frame desc": "is not compressed as its name says",
    r"Could not set lock|Conflicting lock|different configuration": "is open elsewhere for writing",
    r"Could not convert string '(.*)' to (\w+)(?: when casting from source column (\w+))?": (
        r"has the value '\1' in the column \3, which is no \2"
    ),
    r"file system operations are disabled": "reads another file",
    r"no such table: (?:main\.)?(\S+)|Table with name (\S+) does not exist": (
        r"reads the table \1\2, which does not exist"
    ),
}  # fmt: skip


@contextmanager
def reading(place: str, remedy: str, reason: str = "is damaged, or has another format") -> Iterator[None]:
    """Turn an error of a package into a sentence: place, reason and remedy, without the text of the package.

    Errors of khop, and those of the machine such as a full disk, pass.

    Args:
        place: What is read, for people: the key in the spec and the file.
        remedy: What to do about a file that cannot be read.
        reason: What is wrong if the error of the package does not tell.
    Raises:
        ValueError: For errors of the package.
        MemoryError: If the package has not enough memory.
    Example:
        >>> with reading("nodes.user.files: users.parquet", "write it again"):
        ...     pq.ParquetFile("users.parquet")
    """
    try:
        yield
    except (MemoryError, duckdb.OutOfMemoryException):
        raise MemoryError(place) from None
    except (*PACKAGE_ERRORS, *_DAMAGE, OSError) as error:
        of_file = next((text for kind, text in _OF_FILE.items() if isinstance(error, kind)), None)
        if isinstance(error, OSError) and error.errno is not None and of_file is None:
            raise
        raise explained(error, place, remedy, of_file or reason) from None


def explained(error: Exception, place: str, remedy: str, reason: str) -> ValueError:
    """Return the error of a package as a sentence; `reason` is for errors that do not tell a known one."""
    found = ((re.search(pattern, str(error)), text) for pattern, text in _REASONS.items())
    reason = next((match.expand(text) for match, text in found if match), reason)
    return ValueError(f"{place}: {reason}; {remedy}")
