"""The optional packages of the import, and the one sentence that says how to install them."""

from __future__ import annotations

INSTALL = "khop import needs pyarrow and duckdb: pip install pyarrow duckdb"

try:
    import duckdb
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.csv as pa_csv
    import pyarrow.parquet as pq
except ImportError as error:
    raise ImportError(f"{INSTALL} ({error})") from None

__all__ = ["INSTALL", "duckdb", "pa", "pa_csv", "pc", "pq"]
