"""Input that cannot be read: a sentence with its place and the remedy, never the text of a library."""

from __future__ import annotations

import gzip
import io
import os
import re
import shutil
import sqlite3
import subprocess
import sys
import zipfile
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cli.conftest import Ran
from data.formats.server import FileServer
from support.malformed import (
    BUYS,
    ITEMS,
    MANY_USERS,
    PAIRS,
    SPEC,
    USERS,
    Files,
    arrow,
    link,
    parquet,
    refused,
    written,
)

Command = Callable[..., Ran]

NUMBERS = list(range(1, 21))


def of_duckdb(*statements: str) -> Callable[[Path], None]:
    """Write a DuckDB file."""

    def write(path: Path) -> None:
        with duckdb.connect(str(path)) as connection:
            for statement in statements:
                connection.execute(statement)

    return write


def of_sqlite(*statements: str, keep: int | None = None) -> Callable[[Path], None]:
    """Write an SQLite file, or its first bytes."""

    def write(path: Path) -> None:
        with closing(sqlite3.connect(path)) as connection:
            for statement in statements:
                connection.execute(statement)
            connection.commit()
        path.write_bytes(path.read_bytes()[:keep])

    return write


USERS_TABLE = "CREATE TABLE users AS SELECT 'u' || i AS id, 20 AS age, 'Rome' AS city FROM range(1, 31) t(i)"
SQLITE_USERS = (
    "CREATE TABLE users (id TEXT, age INTEGER, city TEXT)",
    "INSERT INTO users VALUES ('u1', 1, 'a')",
)


LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n"


@dataclass(frozen=True)
class Case:
    """Malformed input of a command."""

    name: str
    files: Files
    says: str  # a regular expression that the error has
    edits: tuple[tuple[str, str], ...] = ()  # of the spec
    spec: str = field(default=SPEC, repr=False)

    def __str__(self) -> str:
        return self.name


def users(name: str, text: bytes, says: str, *edits: tuple[str, str]) -> Case:
    """Another users.csv."""
    return Case(name, {"users.csv": text}, says, edits)


def buys(name: str, line: str, says: str, *edits: tuple[str, str]) -> Case:
    """One more line of buys.csv: line 62, and row 61."""
    return Case(name, {"buys.csv": BUYS + line.encode()}, says, edits)


def aged(name: str, value: str, kind: str, says: str) -> Case:
    """A value of a column of some kind in row 2."""
    text = b"id,age,city\nu1,1,a\nu2," + value.encode() + b",b\n" + USERS.split(b"\n", 3)[3]
    return users(name, text, says, ('age = "number"', f"age = {kind}"))


def items(name: str, content: bytes, says: str, *edits: tuple[str, str]) -> Case:
    """Another items.parquet."""
    return Case(name, {"items.parquet": content}, says, edits)


def instead(of: str, name: str, more: str = "") -> tuple[str, str]:
    """The edit that gives a table another file."""
    return f'files = ["{of}"]', f'files = ["{name}"]{more}'


def database(
    name: str, file: str, content: bytes | Callable[[Path], None] | None, says: str, by: str = "id"
) -> Case:
    """The table users of a database."""
    place = f'database = "{file}"\ntable = "users"\norder_by = "{by}"'
    files = {} if content is None else {file: content}
    return Case(name, files, says, (('files = ["users.csv"]', place),))


def edited(name: str, before: str, after: str, says: str) -> Case:
    """Another spec."""
    return Case(name, {}, says, ((before, after),))


PRICE = "columns = { price"
REFUSED = ('orphans = "drop"', "")
TIME = 'time = "at"'
CSV = [
    users(
        "header only",
        b"id,age,city\n",
        r"buys.csv, row 1: .*user is 'u1', and no 'user' has this id.*orphans = ",
        REFUSED,
    ),
    users(
        "no column",
        b"id,town\nu1,a\n",
        r"nodes.user.columns.age: no column 'age' in users.csv; there are id, town",
    ),
    users("other case", USERS.replace(b"age", b"Age"), r"no column 'age' in users.csv; did you mean Age\?"),
    users(
        "NUL in header", b"i\0d,age,city\nu1,1,a\n", r"line 1: has a NUL byte; correct the line, or give enc"
    ),
    users("Latin-1 after 1 MB", MANY_USERS + b"w,1,\xe9\n", r"users.csv, line 200032: invalid UTF-8"),
    Case(
        "no such zone",
        {"buys.csv": b"user,item,price,at\nu1,1,1,2024-03-31T02:30:00\n"},
        r"timezone is 'Mars/Olympus', which does not exist; give",
        ((TIME, TIME + '\ntimezone = "Mars/Olympus"'),),
    ),
]
FILES = [
    Case(
        "gzip changed",
        {"u.csv.gz": gzip.compress(MANY_USERS)[:-8] + b"\1" * 8},
        r"u.csv.gz: is damaged, or has another format; write it again",
        (instead("users.csv", "u.csv.gz"),),
    ),
    Case(
        "other encoding",
        {"users.csv": USERS + b"u31,1,\x81\n"},
        r"users.csv, line 32: invalid cp1252; give the enc",
        (instead("users.csv", "users.csv", '\nencoding = "cp1252"'),),
    ),
    Case(
        "second of two is short",
        {"p0.csv": USERS, "p1.csv": b"id,age,city\nv1,1\n"},
        r"p1.csv, line 2, column 'city': the row has 2 fields",
        (instead("users.csv", "p*.csv"),),
    ),
    Case(
        "second of two has a word",
        {"p0.csv": USERS, "p1.csv": b"id,age,city\nv1,x,a\n"},
        r"p1.csv, row 1: .*age is 'x': not a number",
        (instead("users.csv", "p*.csv"),),
    ),
    Case(
        "second of two lacks a column",
        {"p0.csv": USERS, "p1.csv": b"id,city\nv1,a\n"},
        r"no column 'age' in p1.csv, but other files have it; add it to p1.csv",
        (instead("users.csv", "p*.csv"),),
    ),
    Case(
        "second of two is empty",
        {"p0.csv": USERS, "p1.csv": b""},
        r"p1.csv: is empty",
        (instead("users.csv", "p*.csv"),),
    ),
    Case(
        "second of two repeats ids",
        {"p0.csv": USERS, "p1.csv": USERS},
        r"p1.csv, row 1: nodes.user.id is 'u1', and so is p0.csv, row 1",
        (instead("users.csv", "p*.csv"),),
    ),
    Case(
        "brackets",
        {"p[1].csv": b"id,age,city\nu1,x,a\n", "p1.csv": USERS},
        r"p\[1\].csv, row 1: .*age is 'x'",
        (instead("users.csv", "p[1].csv"),),
    ),
    Case("no match", {}, r"no file matches 'u\*.txt' in", (instead("users.csv", "u*.txt"),)),
    Case(
        "folder",
        {"d.csv/x.csv": USERS, "d.csv/y.parquet": b""},
        r"d.csv is a folder with files of csv, parquet; name its files",
        (instead("users.csv", "d.csv"),),
    ),
    Case(
        "device",
        {},
        r"/dev/null is not a regular file, but is read twice; save",
        (instead("users.csv", "/dev/null"),),
    ),
    Case(
        "pipe among files",
        {"p0.csv": USERS, "p1.csv": os.mkfifo},
        r"p1.csv is not a regular file, but is read twice; save",
        (instead("users.csv", "p*.csv"),),
    ),
    Case(
        "dangling link among files",
        {"p0.csv": USERS, "p1.csv": link(".git/annex/objects/p1")},
        r"p1.csv is a link to .git/annex/objects/p1, which does not exist; fetch",
        (instead("users.csv", "p*.csv"),),
    ),
    Case(
        "link in a circle in a folder",
        {"d/p0.csv": USERS, "d/p1.csv": link("p1.csv")},
        r"d/p1.csv is a link to p1.csv, which does not exist",
        (instead("users.csv", "d"),),
    ),
    items(
        "Parquet without values",
        parquet(id=pa.nulls(0), kind=pa.nulls(0)),
        r"nodes.item.id: the column has no values; complete it, or leave out a table without rows",
    ),
    items(
        "id of fractions", parquet(id=[0.5], kind=["a"]), r"nodes.item.id: ids are double; convert the column"
    ),
    items("id of lists", parquet(id=[[1]], kind=["a"]), r"nodes.item.id: ids are list.*; convert the column"),
    items(
        "unsigned id",
        parquet(id=pa.array([2**63 + 5], pa.uint64()), kind=["a"]),
        r"items.parquet, row 1: nodes.item.id is 9223372036854775813: no integer within int64",
    ),
    items(
        "label of structures",
        parquet(id=[1], kind=[{"a": 1}]),
        r"items.parquet, row 1: nodes.item.label is .*neither text",
    ),
    Case(
        "types differ",
        {"i0.parquet": ITEMS, "i1.parquet": parquet(id=["x"], kind=["a"])},
        r"column 'id' is int64 in i0.parquet and string in i1.parquet; convert",
        (instead("items.parquet", "i*.parquet"),),
    ),
    Case(
        "second Parquet file damaged",
        {"i0.parquet": ITEMS, "i1.parquet": ITEMS[:4] + b"\xff" * 40 + ITEMS[44:]},
        r"i1.parquet, row group 0: is damaged; write it again",
        (instead("items.parquet", "i*.parquet"),),
    ),
    Case(
        "Arrow offsets",
        {
            "i.arrow": arrow(id=[1, 2, 3], kind=["a", "b", "a"]).replace(
                np.arange(4, dtype=np.int32).tobytes(), np.array([0, 10**8, 2, 3], np.int32).tobytes()
            )
        },
        r"i.arrow: is damaged, or has another format; correct it",
        (instead("items.parquet", "i.arrow"),),
    ),
    Case(
        "Arrow text",
        {"i.arrow": arrow(id=[1, 2], kind=["ab", "cd"]).replace(b"abcd", b"ab\xffd")},
        r"i.arrow, row 2: the column 'kind' is b'.xffd': invalid UTF-8; correct",
        (instead("items.parquet", "i.arrow"),),
    ),
]
DATABASES = [
    database(
        "text as database",
        "shop.duckdb",
        USERS,
        r"shop.duckdb: is not a DuckDB file, or is damaged; .*DuckDB or SQL",
    ),
    database("empty database", "shop.duckdb", b"", r"shop.duckdb: is not a DuckDB file, or is damaged"),
    database("no database", "shop.duckdb", None, r"shop.duckdb: no such file in .*; give the path"),
    database(
        "no table",
        "shop.duckdb",
        of_duckdb("CREATE TABLE uers (id INT)"),
        r"no table 'users'; did you mean uers\?",
    ),
    database(
        "no order",
        "shop.duckdb",
        of_duckdb(USERS_TABLE),
        r"order_by: no column 'nr' in .*; there are id",
        "nr",
    ),
    database(
        "order repeats",
        "shop.duckdb",
        of_duckdb(USERS_TABLE),
        r"order_by 'city' of .*1 values in 30 rows",
        "city",
    ),
    database(
        "no column in table",
        "shop.duckdb",
        of_duckdb("CREATE TABLE users (id VARCHAR, age INT)"),
        r"no column 'city' in shop.duckdb, table users; there are id, age",
    ),
    database(
        "interval",
        "shop.duckdb",
        of_duckdb("CREATE TABLE users AS SELECT 'u1' AS id, INTERVAL 1 DAY AS age, 1 AS city"),
        r"table users, row 1: .*not a number",
    ),
    database(
        "view of a file",
        "shop.duckdb",
        lambda path: of_duckdb(f"CREATE VIEW users AS SELECT * FROM read_csv('{path.parent / 'users.csv'}')")(
            path
        ),
        r"shop.duckdb, table users: reads another file; a view may only read this file",
    ),
    database(
        "view of nothing",
        "shop.duckdb",
        of_duckdb("CREATE TABLE t (id INT)", "CREATE VIEW users AS SELECT * FROM t", "DROP TABLE t"),
        r"shop.duckdb, table users: reads the table t, which does not exist",
    ),
    database(
        "view that fails",
        "shop.duckdb",
        of_duckdb(
            "CREATE TABLE t AS SELECT 'u1' AS id, 'x' AS age, 'a' AS city",
            "CREATE VIEW users AS SELECT id, age::INT AS age, city FROM t",
        ),
        r"shop.duckdb, table users: has the value 'x' in the column age, which is not of type INT32",
    ),
    database(
        "SQLite cut", "shop.db", of_sqlite(*SQLITE_USERS, keep=5000), r"shop.db: is cut off; restore the file"
    ),
    database(
        "SQLite without pages", "shop.db", of_sqlite(*SQLITE_USERS, keep=16), r"shop.db.*is damaged.*restore"
    ),
    database(
        "no SQLite table",
        "shop.db",
        of_sqlite("CREATE TABLE uers (id)"),
        r"no table 'users'; did you mean uers",
    ),
    database(
        "SQLite view of nothing",
        "shop.db",
        of_sqlite("CREATE TABLE t (id)", "CREATE VIEW users AS SELECT * FROM t", "DROP TABLE t"),
        r"reads the table t, which does not",
    ),
    database(
        "SQLite mixes types",
        "shop.db",
        of_sqlite(
            "CREATE TABLE users (id, age, city)", "INSERT INTO users VALUES ('u1', 1, 'a'), ('u2', 'x', 'b')"
        ),
        r"column 'age' of shop.db, table users has values of several types .*row with id = 'u[12]'",
    ),
    database(
        "SQLite text not UTF-8",
        "shop.db",
        of_sqlite(SQLITE_USERS[0], "INSERT INTO users VALUES ('u1', 1, 'a'), ('u2', 1, CAST(x'ff' AS TEXT))"),
        r"shop.db, table users, row 2: the column 'city' is b'.xff': invalid UTF-8; correct the row",
    ),
    database(
        "no variable",
        "env:NO_SUCH_DATABASE",
        None,
        r"the environment has no variable NO_SUCH_DATABASE; set it",
    ),
    database(
        "MySQL", "mysql://host/shop", None, r"mysql://host/shop is the address of an unsupported database"
    ),
]
SPECS = [
    edited("not TOML", "[nodes.user]", "[nodes.user", r"not TOML: line 2, '.nodes.user', cannot be"),
    edited(
        "key twice",
        'id = "id"',
        'id = "id"\nid = "id"',
        r"line 5, 'id = .id.', defines a key or a table twice; remove it",
    ),
    edited(
        "unknown field",
        'id = "id"\nlabel',
        'idd = "id"\nlabel',
        r"nodes.item.idd: no such field; did you mean id",
    ),
    edited("files are a number", '["users.csv"]', "7", r"nodes.user.files is 7: must be a list"),
    edited("files are numbers", '["users.csv"]', "[3]", r"nodes.user.files\[0\] is 3: must be text"),
    edited("no files", '["users.csv"]', "[]", r"nodes.user.files is \[\]: must have at least 1 item"),
    edited(
        "file without name",
        '["users.csv"]',
        '[""]',
        r"nodes.user.files\[0\] is '': must have at least 1 character",
    ),
    edited(
        "long delimiter",
        "\nid",
        '\ndelimiter = ";;;;;"\nid',
        r"delimiter is ';;;;;': must have at most 4 characters",
    ),
    edited(
        "quote as delimiter",
        "\nid",
        "\ndelimiter = '\"'\nid",
        r"delimiter is '\"': must not be a quote or a line end",
    ),
    edited(
        "no such encoding",
        "\nid",
        '\nencoding = "utf-9"\nid',
        r"encoding 'utf-9' does not exist; give a name",
    ),
    edited(
        "no such kind",
        'age = "number"',
        'age = "nubmer"',
        r"age: kind 'nubmer' does not exist; did you mean number",
    ),
    edited("width 0", '"category"', '{ kind = "text", width = 0 }', r"city.width is 0: must be at least 1"),
    edited(
        "width is text",
        '"category"',
        '{ kind = "text", width = "8" }',
        r"city.width is '8': must be a whole number",
    ),
    edited("ratio is text", "[0.5, 0.25, 0.25]", '["a", 0, 1]', r"split.ratio\[0\] is 'a': must be a number"),
    edited(
        "shares", "[0.5, 0.25, 0.25]", "[0.5, 0.5, 0.5]", r"ratio \[0.5, 0.5, 0.5\]: must be three shares"
    ),
    edited(
        "no such type", "[nodes.item]", "[nodes.itme]", r"edge type 'user buys item': no node type 'item'"
    ),
    edited(
        "where ends early",
        PRICE,
        'where = "price >"\n' + PRICE,
        r"where: 'price >' is not one SQL expression, near '>'; write one",
    ),
    edited(
        "where of no column",
        PRICE,
        "where = \"prise = '1'\"\n" + PRICE,
        r"where: no column 'prise'; did you mean price",
    ),
    edited(
        "where compares",
        PRICE,
        'where = "price > 1"\n' + PRICE,
        r"'price > 1' does not fit .*price is string.*cast them",
    ),
    edited(
        "where calls", PRICE, 'where = "substr(price)"\n' + PRICE, r"'substr\(price\)' does not fit the types"
    ),
    edited("where is text", PRICE, 'where = "price"\n' + PRICE, r"'price' is VARCHAR: must be true or false"),
    buys(
        "where fails",
        "u1,1,x,2024-02-03T00:00:00Z\n",
        r"buys.csv, row 61: .*'price::DOUBLE > 1' fails for price = 'x'; use",
        (PRICE, 'where = "price::DOUBLE > 1"\n' + PRICE),
    ),
]


def spec_of(case: Case) -> str:
    """The spec of a case."""
    text = case.spec
    for before, after in case.edits:
        assert before in text, case
        text = text.replace(before, after, 1)
    return text


def check(ran: Ran, case: Case) -> None:
    """The error is one sentence of khop with the remedy."""
    assert ran.code == 2, ran
    refused(ran.stderr, "^khop: ", case.says)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, with sound tables."""
    written(tmp_path, {"users.csv": USERS, "items.parquet": ITEMS, "buys.csv": BUYS})
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_tables_are_sound_before_they_are_changed(folder: Path, khop_command: Command) -> None:
    (folder / "shop.toml").write_text(SPEC)
    ran = khop_command("import", "shop.toml", "out", "--threads", "1")
    assert ran.code == 0, ran.stderr
    assert "30 user, 20 item; 60 user buys item" in ran.stdout


@pytest.mark.core(8)
@pytest.mark.parametrize("case", [*CSV, *FILES, *DATABASES, *SPECS], ids=str)
def test_input_is_refused_in_a_sentence(folder: Path, khop_command: Command, case: Case) -> None:
    written(folder, case.files)
    (folder / "shop.toml").write_text(spec_of(case))
    check(khop_command("import", "shop.toml", "out", "--threads", "1"), case)
    assert not (folder / "out").exists()


def test_a_locked_sqlite_file_is_refused_in_a_sentence(folder: Path, khop_command: Command) -> None:
    case = next(case for case in DATABASES if str(case) == "no SQLite table")
    written(folder, {"shop.db": of_sqlite(*SQLITE_USERS)})
    (folder / "shop.toml").write_text(spec_of(case))
    # A process that closes the file loses its own locks, so another one has it locked.
    lock = (
        "import sqlite3; shop = sqlite3.connect('shop.db'); shop.execute('BEGIN EXCLUSIVE'); "
        "print(flush=True); input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", lock], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"\n"
        ran = khop_command("import", "shop.toml", "out", "--threads", "1")
        writer.communicate(b"\n")
    locked = replace(case, says=r"shop.db.*is open elsewhere for writing; close programs that write to it")
    check(ran, locked)


ITEMS_OF_SPEC = """[nodes.item]
files = ["items.parquet"]
id = "id"
label = "kind"
split = { ratio = [0.5, 0.25, 0.25] }
"""
DAY = (
    SPEC.replace(ITEMS_OF_SPEC, "[nodes.item]\n")
    .replace("users.csv", "new.csv")
    .replace("buys.csv", "late.csv")
)
NEW, LATE = b"id,age,city\nn1,3,Rome\n", b"user,item,price,at\nn1,1,2,2024-03-01T00:00:00Z\n"


def later(name: str, files: Files, says: str, *edits: tuple[str, str]) -> Case:
    """Tables to append."""
    return Case(name, {"new.csv": NEW, "late.csv": LATE, **files}, says, edits, DAY)


APPEND = [
    later("known id", {"new.csv": NEW + b"u1,3,a\n"}, r"new.csv, row 2: nodes.user.id is 'u1', a node of"),
    later("no TOML", {}, r"day.toml: not TOML", ("[nodes.user]", "[nodes.user")),
    later(
        "other kind",
        {},
        r'age: is a "category", but .* have a "number"; remove',
        ('age = "number"', 'age = "category"'),
    ),
    later("no such type", {}, r"no node type 'user'; did you mean usr\?", ("[nodes.user]", "[nodes.usr]")),
    later(
        "SQLite",
        {"day.db": of_sqlite(*SQLITE_USERS, keep=5000)},
        r"nodes.user.database: day.db: is cut off; restore",
        ('files = ["new.csv"]', 'database = "day.db"\ntable = "users"\norder_by = "id"'),
    ),
]
DELETE = [
    ("user", r"--delete 'user': give a node type and an id"),
    ("usr=u1", r"no node type 'usr'; there are"),
    ("user=zz", r"no user has the id 'zz'; 1 of 1 ids are unknown; remove them"),
    ("item=x", r"id 'x': ids of 'item' are integers of 64 bits; correct it"),
    (f"item={10**20}", r"id '10+': ids of 'item' are integers of 64 bits; correct it"),
    ("user=@none.txt", r"none.txt: no such file; give a text file with one id per line"),
    ("user=@folder.csv", r"folder.csv: is a folder; give a text file with one id per line"),
    ("user=@bytes.txt", r"bytes.txt, line 2: invalid UTF-8; save the file as UTF-8"),
]
PAIR_FILES: dict[str, tuple[bytes, str]] = {
    "case.csv": (b"User,item\nu1,1\n", r"pairs: no column 'user' in case.csv; did you mean User"),
    "word.csv": (PAIRS + b"u1,x\n", r"word.csv, row 3: pairs: item is 'x', .*write it as an integer"),
    "null.csv": (PAIRS + b"u1,\n", r"null.csv, row 3: pairs: item is null; .*correct the row"),
    "column.parquet": (parquet(user=["u1"]), r"pairs: no column 'item' in column.parquet; there are user"),
    "fraction.parquet": (
        parquet(user=["u1"], item=[1.5]),
        r"pairs: item: ids are double; convert the column",
    ),
    "list.parquet": (parquet(user=[["u1"]], item=[1]), r"pairs: user: ids are list.*; convert the column"),
}
GUESS = [
    ("short.csv", b"a,b\n1\n", r"--guess: short.csv, line 2, column 'b': the row has 1 fields"),
    ("empty.csv", b"", r"--guess: empty.csv: is empty; the first row must name the columns"),
    ("text.parquet", b"a,b\n", r"--guess: text.parquet: is not a Parquet file, or is damaged"),
    ("latin.csv", b"a,b\n1,\xe9\n", r"--guess: latin.csv, line 2: invalid UTF-8"),
    ("none.csv", None, r"--guess: none.csv: no such file in"),
    (
        "a.mtx",
        b"%%MatrixMarket matrix coordinate pattern general\n3 3 1\n1 2\n",
        r"a.mtx, line 1: is a comment; .*edges:a",
    ),
    (
        "snap.txt",
        b"# FromNodeId\tToNodeId\n0\t1\n",
        r"snap.txt, line 1: is a comment; import lists of edges by khop",
    ),
]


@pytest.mark.core(1)
@pytest.mark.parametrize("case", APPEND, ids=str)
def test_tables_to_append_are_refused_in_a_sentence(
    trained_shop: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, khop_command: Command, case: Case
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(trained_shop / "shop", "shop")
    written(tmp_path, case.files)
    Path("day.toml").write_text(spec_of(case))
    check(khop_command("append", "shop", "day.toml"), case)
    assert khop_command("verify", "shop").code == 0


GRAPHML = (
    b'<graphml xmlns="http://graphml.graphdrawing.org/xmlns">\n<key id="d0" for="node" attr.name="age" '
    b'attr.type="int"/>\n<graph edgedefault="directed">\n<node id="a"><data key="d0">%s</data></node>\n'
    b'<node id="b"/>\n%s\n</graph>\n</graphml>\n'
)
GML = b'graph [\n  node [\n    id 0\n    label "a"\n  ]\n  node [\n    id 1\n    label "b"\n  ]\n%s]\n'
PAJEK = b'*Vertices 2\n1 "a"\n2 "b"\n*Arcs\n1 2 1.5\n%s\n'
MTX = b"%%MatrixMarket matrix coordinate real general\n3 3 2\n1 2 0.5\n"
META = b"dataset_name: d\nnode_data:\n- file_name: n.csv\nedge_data:\n- file_name: e.csv\n"


def zipped(**members: bytes) -> bytes:
    """The bytes of a zip file."""
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return sink.getvalue()


SETS: list[tuple[str, bytes | Callable[[Path], None], str]] = [  # a file, and the error of importing it
    (
        "g.txt",
        b"1 2\n" * 9 + b"1 " + b"9" * 200_000 + b"\n",
        r"g.txt, line 10: a field is longer than 131,072",
    ),
    ("g.txt", b"1 2\n" * 99_999 + b"1 " + b"9" * 9_000_000 + b"\n", r"g.txt, line 100000: a field is longer"),
    ("g.txt", LFS, r"g.txt: is a pointer of Git LFS .*; fetch the file: git lfs pull"),
    ("g.txt", b"<html>\n<body> x\n", r"g.txt: is a web page; download the file again"),
    ("g.txt", "1 2\n".encode("utf-32"), r"g.txt: is UTF-32; save the file as UTF-8"),
    (
        "g.txt.gz",
        gzip.compress(gzip.compress(b"1 2\n")),
        r"g.txt.gz: is compressed twice; unpack it once",
    ),
    ("g.txt", Path.mkdir, r"g.txt: is a folder; give an edge list"),
    ("g.txt", os.mkfifo, r"g.txt is not a regular file, but is read twice; save it as one"),
    ("g.txt", link("none"), r"g.txt is a link to none, which does not exist; fetch that file, or correct"),
    (
        "g.graphml",
        GRAPHML % (b"x", b""),
        r"g.graphml, line 4: the value 'x' in .*is not valid",
    ),
    ("g.graphml", GRAPHML % (b"1", b"<edge>"), r"g.graphml, line 7: .*correct the line"),
    ("g.graphml", b"", r"g.graphml.*write it again|g.graphml, line 1"),
    ("g.graphml", b"<graphml>\n", r"g.graphml, line 2|g.graphml.*correct"),
    (
        "g.graphml",
        GRAPHML % (b"1", b'<edge source="a"/>'),
        r"g.graphml: line 6: the edge has no target; add",
    ),
    ("g.graphml", GRAPHML % (b"1", b"<hyperedge/>"), r"g.graphml: it has hyperedges, .*remove them"),
    ("g.graphml", GRAPHML % (b"1", b"\xff"), r"g.graphml, line 6: .*correct"),
    ("g.gexf", b"<gexf><graph><nodes><node/></nodes></graph>", r"g.gexf, line 1"),
    (
        "g.gml",
        GML % b"  edge [\n    source 0\n    target 7\n  ]\n",
        r"an edge has the target 7, which no",
    ),
    ("g.gml", GML % b"  edge [\n    source 0\n  ]\n", r"edge 0 has no target; add it"),
    ("g.gml", GML % b"  ???\n", r"g.gml, line 10: '\?\?\?' is not valid .*correct the line"),
    ("g.gml", (GML % b"").replace(b"id 1", b"id 0"), r"two nodes have the id 0; rename one"),
    ("g.gml", GML % b"\xff", r"g.gml, line 10: invalid UTF-8; save the file as UTF-8"),
    ("g.net", PAJEK % b"x 2", r"g.net: line 6: 'x 2' is not a valid arc: two numbers of vertices"),
    ("g.net", PAJEK % b"1", r"g.net: line 6: '1' is not a valid arc"),
    (
        "g.net",
        (PAJEK % b"").replace(b'2 "b"', b"b"),
        r"g.net: line 3: 'b' is not a valid vertex: a number and a name",
    ),
    ("g.net", PAJEK % b"*Foo", r"g.net: has a section \*foo; remove it"),
    ("g.mtx", MTX + b"9 9 1.0\n", r"g.mtx, line 4: '9 9 1.0' is not an entry of a matrix of this size"),
    ("g.mtx", MTX + b"1 x 1.0\n", r"g.mtx, line 4: '1 x 1.0' is not an entry"),
    ("g.mtx", MTX, r"g.mtx.*(cut off|line 3)"),
    (
        "g.mtx",
        b"%%MatrixMarket matrix array real general\n2 2\n1\n1\n1\n1\n",
        r"is a real array matrix",
    ),
    ("g.txt", b"1 2\n3\n", r"g.txt, line 2: has 1 fields, but other lines have 2"),
    ("g.txt", b"1 2\n\xff 3\n", r"g.txt, line 2: invalid UTF-8; save the file as UTF-8"),
    ("g.txt.gz", b"1 2\n", r"g.txt.gz: is not compressed as its name says; write the file again"),
    ("g.txt.gz", gzip.compress(b"1 2\n" * 999)[:-9], r"g.txt.gz: is cut off; write the file again"),
    ("d/meta.yaml", b"dataset_name: [\n", r"meta.yaml, line 2, column 1: not plain YAML; correct it"),
    (
        "d/meta.yaml",
        b"dataset_name: !!python/name:os.system\n",
        r"line 1, column 15: not plain YAML",
    ),
    ("d/meta.yaml", b"dataset_name: d\n", r"node_data is missing; add it \(d/meta.yaml\)"),
    ("d/meta.yaml", META.replace(b": d", b": 3"), r"dataset_name is 3: must be text \(d/meta.yaml\)"),
    (
        "d/meta.yaml",
        META + b"separator: ';;'\n",
        r"separator is ';;': must have at most 1",
    ),
    (
        "d/meta.yaml",
        META.replace(b"node_data:\n- file_name: n.csv", b"node_data: []"),
        r"must have at least 1 item",
    ),
    ("d/meta.yaml", META, r"n.csv: no such file; correct its name in meta.yaml"),
]


@pytest.mark.core(4)
@pytest.mark.parametrize(
    ("name", "content", "says"), SETS, ids=[f"{n}-{i}" for i, (n, *_) in enumerate(SETS)]
)
def test_a_set_is_refused_in_a_sentence(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    khop_command: Command,
    name: str,
    content: bytes | Callable[[Path], None],
    says: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    written(tmp_path, {name: content})
    source = "dgl:d" if name.startswith("d/") else f"edges:{name}"
    check(khop_command("import", source, "out"), Case(name, {}, says))
    assert not Path("out").exists()


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (zipped(a=b"x" * 99)[:80], r"neither a .zip nor a .tar archive; remove it and import again"),
        (zipped(a=b"x" * 99).replace(b"x" * 99, b"y" * 99), r"is damaged or cut off; remove it and import"),
        (zipped(a=b"x").replace(b"PK\x03\x04\x14\0\0\0", b"PK\x03\x04\x14\0\1\0").replace(
            b"PK\x01\x02\x14\x03\x14\0\0\0", b"PK\x01\x02\x14\x03\x14\0\1\0"
        ), r"is encrypted, or compressed by another method; unpack it yourself"),
        (None, r"the server cannot be reached, 5 times; import again"),
    ],
    ids=["cut", "changed", "encrypted", "no server"],
)  # fmt: skip
def test_a_download_is_refused_in_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, khop_command: Command, content: bytes | None, says: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KHOP_CACHE", str(tmp_path / "cache"))
    (tmp_path / "ml-latest.zip").write_bytes(content or b"")
    with FileServer(tmp_path) as server:
        mirror = server.url if content else "http://127.0.0.1:9"
        check(khop_command("import", "movielens:ml-latest", "out", "--mirror", mirror), Case("", {}, says))


@pytest.mark.core(1)
@pytest.mark.parametrize(("word", "says"), DELETE)
def test_ids_to_delete_are_refused_in_a_sentence(
    trained_shop: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    khop_command: Command,
    word: str,
    says: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    written(tmp_path, {"folder.csv/a": b"", "bytes.txt": b"u1\n\xff\n"})
    check(khop_command("append", str(trained_shop / "shop"), "--delete", word), Case(word, {}, says))


@pytest.mark.core(2)
@pytest.mark.parametrize("name", PAIR_FILES)
def test_pairs_are_refused_in_a_sentence(
    trained_shop: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, khop_command: Command, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    content, says = PAIR_FILES[name]
    Path(name).write_bytes(content)
    check(khop_command("predict", str(trained_shop / "run"), "--pairs", name), Case(name, {}, says))


@pytest.mark.parametrize("name", ["none.csv", "none.parquet"])
def test_a_file_of_no_pairs_gives_no_rows(
    trained_shop: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, khop_command: Command, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    empty = pa.array([], pa.string())
    Path(name).write_bytes(b"user,item\n" if name.endswith("csv") else parquet(user=empty, item=empty))
    ran = khop_command("predict", str(trained_shop / "run"), "--pairs", name, "--out", "scores.parquet")
    assert ran.code == 0, ran.stderr
    scores = pq.read_table("scores.parquet")
    assert (scores.column_names, scores.num_rows) == (["source_id", "destination_id", "score"], 0)


@pytest.mark.core(1)
@pytest.mark.parametrize(("name", "content", "says"), GUESS)
def test_files_to_guess_are_refused_in_a_sentence(
    folder: Path, khop_command: Command, name: str, content: bytes | None, says: str
) -> None:
    if content is not None:
        (folder / name).write_bytes(content)
    check(khop_command("import", "--guess", "users.csv", name), Case(name, {}, says))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            b"session,aid\n1,5\n1,6\n2,5\n2,6\n",
            r"x.csv: no unique column, and no two columns with ids, of .*; pass --header no if .*, or",
        ),
        (b"user_id,item_id\n", r"x.csv: has no rows after its names, .*; add rows, or pass --header no if"),
    ],
)
def test_a_table_without_ids_has_no_proposal(
    folder: Path, khop_command: Command, text: bytes, says: str
) -> None:
    (folder / "x.csv").write_bytes(text)
    check(khop_command("import", "--guess", "x.csv"), Case("x.csv", {}, says))
    says = "khop import --guess --header: --guess takes files; give --header after them"
    check(khop_command("import", "--guess", "--header", "no", "x.csv"), Case("x.csv", {}, says))


@pytest.mark.long
@pytest.mark.parametrize("case", [CSV[0], FILES[0], DATABASES[0], SPECS[-1]], ids=str)
def test_a_process_prints_the_sentence_and_no_result(folder: Path, case: Case) -> None:
    written(folder, case.files)
    (folder / "shop.toml").write_text(spec_of(case))
    ran = subprocess.run(
        [sys.executable, "-m", "khop", "import", "shop.toml", "out"],
        capture_output=True,
        text=True,
        check=False,
    )
    check(Ran(ran.returncode, ran.stdout, ran.stderr), case)
    *progress, error = ran.stderr.splitlines()  # a line of progress on a slow machine
    assert (ran.stdout, re.search(case.says, error) is not None) == ("", True)
    assert all(line.startswith("khop: ") for line in progress)
