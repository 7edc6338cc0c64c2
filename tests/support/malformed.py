"""Writers of tables, and what every error about malformed input must have."""

from __future__ import annotations

import csv
import io
import json
import re
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

Columns = Mapping[str, Sequence[Any]]
Files = Mapping[str, bytes | Callable[[Path], None]]

# Words of DuckDB, Arrow, torch, pydantic, NumPy, the driver of SQLite, and Python.
FOREIGN = re.compile(
    r"Traceback|likely a bug|Error:|Exception|Errno|[Pp]yarrow|pydantic|numpy|torch|Input should|Possible fix"
    r"|Binder|Catalog|Parser|thrift|magic bytes|deserialize|Failed to|scalar of type|cast_|Warning|read_csv"
    r"|networkx|scipy|yaml\.|mapping values|could not convert|invalid literal|not well-formed"
    r"|Unterminated|Expected|urlopen|zlib|UTF8|should (be|have)|\bLINE \d|codec|0x"
)
REMEDIES = re.compile(
    r"[;:,.] .*\b(give|leave|write|correct|rename|did you mean|there are|add|convert|complete|remove|close"
    r"|restore|save|name|use|cast|unpack|fetch|download|set|export|orphans|missing|must|chmod|separate)\b"
    r"|: must \w+|not TOML",
    re.IGNORECASE,
)


def refused(said: str, *patterns: str) -> None:
    """Assert that an error is one sentence of khop with these parts and a remedy."""
    said = " ".join(said.split())
    for pattern in patterns:
        assert re.search(pattern, said), f"{said}\nlacks {pattern}"
    assert not FOREIGN.search(said), said
    assert REMEDIES.search(said), said


def written(folder: Path, files: Files) -> None:
    """Write files."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if callable(content):
            content(path)
        else:
            path.write_bytes(content)


def link(to: str) -> Callable[[Path], None]:
    """Write a symbolic link."""
    return lambda path: path.symlink_to(to)


def text(columns: Columns, delimiter: str = ",") -> bytes:
    """The bytes of a CSV file."""
    sink = io.StringIO()
    rows = csv.writer(sink, delimiter=delimiter, lineterminator="\n")
    rows.writerows([list(columns), *zip(*columns.values(), strict=True)])
    return sink.getvalue().encode()


def json_lines(columns: Columns) -> bytes:
    """The bytes of a file of JSON lines."""
    rows = zip(*columns.values(), strict=True)
    return "".join(json.dumps(dict(zip(columns, row, strict=True))) + "\n" for row in rows).encode()


def parquet(**columns: object) -> bytes:
    """The bytes of a Parquet file."""
    sink = io.BytesIO()
    pq.write_table(pa.table(columns), sink)
    return sink.getvalue()


def arrow(**columns: object) -> bytes:
    """The bytes of an Arrow file."""
    table, sink = pa.table(columns), io.BytesIO()
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()


def duckdb_file(path: Path, name: str, columns: Columns) -> None:
    """Add a table to a DuckDB file, with row numbers as `nr`."""
    with duckdb.connect(str(path)) as connection:
        rows = pa.table(dict(columns))
        connection.register("rows", rows.append_column("nr", pa.array(range(rows.num_rows))))
        connection.execute(f"CREATE TABLE {name} AS SELECT * FROM rows")


def sqlite_file(path: Path, name: str, columns: Columns) -> None:
    """Add a table to an SQLite file, with row numbers as `nr`."""
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"CREATE TABLE {name} (nr, {', '.join(columns)})")
        rows = list(zip(range(1000), *columns.values(), strict=False))
        connection.executemany(f"INSERT INTO {name} VALUES ({', '.join('?' * (1 + len(columns)))})", rows)
        connection.commit()


@dataclass(frozen=True)
class Form:
    """A form of tables: files of a format, or a database."""

    name: str
    write: Callable[[Path, str, Columns], None]  # into a folder, with the name of the table
    spec: str
    place: str  # a regular expression, as errors name the second row

    def __str__(self) -> str:
        return self.name


def _form(name: str, content: Callable[[Columns], bytes], group: str = "") -> Form:
    def write(folder: Path, table: str, columns: Columns) -> None:
        (folder / f"{table}.{name}").write_bytes(content(columns))

    return Form(name, write, f'files = ["{{table}}.{name}"]', rf"\b{{table}}\.{name}, {group}row 2\b")


def _database(name: str, suffix: str, add: Callable[[Path, str, Columns], None]) -> Form:
    def write(folder: Path, table: str, columns: Columns) -> None:
        add(folder / f"shop.{suffix}", table, columns)

    spec = f'database = "shop.{suffix}"\ntable = "{{table}}"\norder_by = "nr"'
    return Form(name, write, spec, rf"\bshop\.{suffix}, table {{table}}, row 2\b")


CSV = _form("csv", text)
PARQUET = _form("parquet", lambda columns: parquet(**columns), "(row group 0, )?")
ARROW = _form("arrow", lambda columns: arrow(**columns))
JSON = _form("jsonl", json_lines)
DUCKDB = _database("DuckDB", "duckdb", duckdb_file)
SQLITE = _database("SQLite", "db", sqlite_file)
FORMS = (CSV, PARQUET, ARROW, JSON, DUCKDB, SQLITE)


SPEC = """
[nodes.user]
files = ["users.csv"]
id = "id"
columns = { age = "number", city = "category" }
[nodes.item]
files = ["items.parquet"]
id = "id"
label = "kind"
split = { ratio = [0.5, 0.25, 0.25] }
[edges."user buys item"]
files = ["buys.csv"]
source = "user"
destination = "item"
time = "at"
columns = { price = "number" }
orphans = "drop"
"""
RUN = """
graph = "shop"
out = "run"
compute_threads = 1
task = { kind = "link-prediction", target = "user buys item" }
sampler = { fanouts = [2] }
model = { hidden = 4 }
training = { epochs = 1, batch_size = 32 }
"""
USERS = b"id,age,city\n" + b"".join(b"u%d,%d,Rome\n" % (n, 20 + n) for n in range(1, 31))
MANY_USERS = USERS + b"".join(b"v%d,%d,Rome\n" % (n, n % 90) for n in range(200_000))
BUYS = b"user,item,price,at\n" + b"".join(
    b"u%d,%d,1.5,2024-02-%02dT00:00:00Z\n" % (n % 30 + 1, n * 7 % 20 + 1, n % 28 + 1) for n in range(60)
)
PAIRS = b"user,item\nu1,1\nu2,2\n"


ITEMS = parquet(id=list(range(1, 21)), kind=["hat", "shoe"] * 10)
