"""Values that cannot be read: one table of faults, each in every form of tables and at every entrance.

The error names file or table, row, column, value and remedy. `import` and `append` read files of four
formats, databases of two kinds and tables in memory.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas
import pytest

import khop
from cli.conftest import Ran
from khop import import_tables
from support.malformed import ARROW, CSV, DUCKDB, FORMS, JSON, PARQUET, SQLITE, Form, parquet, refused

Command = Callable[..., Ran]
NODES, EDGES = "user", "buys"
SOUND: dict[str, dict[str, list[Any]]] = {
    NODES: {"id": ["u1", "u2", "u3"]},
    EDGES: {"user": ["u1", "u2", "u3"], "item": [1, 2, 3], "at": ["2024-02-01T00:00:00Z"] * 3},
}
Three = tuple[Any, Any, Any]
ITEMS = parquet(id=[1, 2, 3])
NATIVE = (PARQUET, ARROW, DUCKDB)  # have lists, bytes and infinite numbers


@dataclass(frozen=True)
class Fault:
    """A bad value in the second of three rows."""

    name: str
    table: str
    column: str
    values: Three
    key: str  # of the spec, as the error names it
    says: str  # the value, and what is wrong with it
    spec: str = ""  # more lines of the table's spec
    forms: tuple[Form, ...] = FORMS
    row: int = 2  # 1: the whole column has another type
    appends: bool = True  # False: `append` counts such rows in a note

    def __str__(self) -> str:
        return self.name


def column(
    name: str,
    values: Three,
    kind: str,
    says: str,
    forms: tuple[Form, ...] = FORMS,
    row: int = 2,
) -> Fault:
    """A value of a column of users."""
    spec = f"columns.age = {kind}"
    return Fault(name, NODES, "age", values, r"nodes\.user\.columns\.age", says, spec, forms, row)


def end(name: str, of: str, values: Three, says: str, forms: tuple[Form, ...] = FORMS) -> Fault:
    """An end of an edge."""
    return Fault(name, EDGES, of, values, rf'edges."user buys item": {of}\b', says, "", forms)


def moment(name: str, value: str | None, says: str, spec: str = "", forms: tuple[Form, ...] = FORMS) -> Fault:
    """A time of an edge."""
    sound = "2024-02-01" if "format" in spec else "2024-02-01T00:00:00" + ("" if "timezone" in spec else "Z")
    return Fault(
        name, EDGES, "at", (sound, value, sound), r'edges\."user buys item"\.time', says, spec, forms
    )


UNSCALED = '{ kind = "number", scale = "none" }'
GIVEN = '{ kind = "number", missing = "refuse" }'
INT64 = '{ kind = "raw", dtype = "int64" }'
DATE = '{ kind = "date", timezone = "UTC" }'
GERMAN = '{ kind = "date", timezone = "UTC", format = "%d.%m.%Y" }'
DATED = '{ kind = "date", timezone = "UTC", missing = "refuse" }'
CLASS, HATS = 'label = "kind"', 'label = { column = "kind", classes = ["hat"] }'
VALUE = 'label = { column = "kind", kind = "number" }'
NOON = "2024-02-01T12:00:00Z"


def label(
    name: str, values: Three, says: str, spec: str, forms: tuple[Form, ...] = FORMS, *, appends: bool = True
) -> Fault:
    """A label of users."""
    spec += "\nsplit = { ratio = [1, 0, 0] }"
    return Fault(name, NODES, "kind", values, r"nodes\.user\.label", says, spec, forms, 2, appends)


NUMBER, RAW, VECTOR = '"number"', '"raw"', '{ kind = "vector", separator = "|" }'
FAULTS = (
    Fault("id null", NODES, "id", ("u1", None, "u3"), r"nodes\.user\.id", "is null"),
    Fault("id twice", NODES, "id", ("u1", "u1", "u3"), r"nodes\.user\.id", "'[un]1', and so is"),
    Fault("id with NUL", NODES, "id", ("u1", "u\0", "u3"), r"'id'", "has a NUL byte", forms=(CSV,)),
    column("word for a number", ("1", "old", "3"), NUMBER, "is 'old': not a number"),
    column("decimal comma", ("1", "1,5", "3"), NUMBER, "is '1,5': not a number"),
    column("infinite text", ("1", "inf", "3"), NUMBER, "is infinite"),
    column("infinite number", (1.0, float("inf"), 3.0), NUMBER, "is infinite", (*NATIVE, SQLITE)),
    column("number beyond float64", ("1", "1e999", "3"), NUMBER, "is infinite"),
    column("number beyond float32", ("1", "1e300", "3"), UNSCALED, r"is 1e\+?300: beyond float32"),
    column("number null", ("1", None, "3"), GIVEN, "is null; give missing"),
    column("list for a number", ([1], [1, 2], [3]), NUMBER, r"not a number", (*NATIVE, JSON), 1),
    column("bytes for a number", (b"1", b"x", b"3"), NUMBER, r"b'x'|bytes|not a number", (*NATIVE, SQLITE)),
    column("neither true nor false", ("yes", "maybe", "no"), '"bool"', "is 'maybe': neither true nor false"),
    column("vector of other length", ("1|2|3", "1|2", "1|2|3"), VECTOR, "has 2 numbers"),
    column(
        "list of other length", ([1.0, 2.0], [1.0], [1.0, 2.0]), '"vector"', "has 1 numbers", (*NATIVE, JSON)
    ),
    column("vector of words", ("1|2", "1|x", "1|2"), VECTOR, r"'1\|x'|'x'"),
    column("vector null", ("1|2", None, "1|2"), VECTOR, "is null"),
    column("integer beyond int64", ("1", "9" * 20, "3"), INT64, r"is '9+': not an int64"),
    column("integer beyond float64's digits", ("1", "9007199254740993", "3"), RAW, "loses its digits"),
    column("raw number null", ("1", None, "3"), RAW, "is null"),
    column("raw word", ("1", "x", "3"), RAW, "is 'x': not a number"),
    column("raw list", ([1], [1, 2], [3]), RAW, r"not a number", (*NATIVE, JSON), 1),
    column(
        "bytes for a category",
        (b"a", b"\xff", b"c"),
        '"category"',
        r"b'.xff': neither text",
        (*NATIVE, SQLITE),
    ),
    column("bytes for a text", (b"a", b"\xff", b"c"), '"text"', r"b'.xff'", (*NATIVE, SQLITE)),
    column("no date", (NOON, "2024-13-01", NOON), DATE, "is '2024-13-01': not an ISO"),
    column("date in another format", ("01.02.2024", "2024", "01.02.2024"), GERMAN, "'2024'"),
    column("date null", ("2024-02-01", None, "2024-02-01"), DATED, "is null"),
    label("unknown class", ("hat", "shoe", "hat"), "'shoe', which is not among", HATS, appends=False),
    label("label infinite", ("1", "inf", "2"), "is infinite", VALUE),
    label("label no number", ("1", "x", "2"), "is 'x': not a number", VALUE),
    label("label of bytes", (b"a", b"\xff", b"a"), r"b'.xff'", CLASS, (*NATIVE, SQLITE)),
    Fault(
        "no split",
        NODES,
        "part",
        ("train", "tarin", "val"),
        r"nodes\.user\.split\.column",
        "is 'tarin': must be train, val, test or null",
        'label = "id"\nsplit.column = "part"',
        appends=False,
    ),
    Fault(
        "no time of a node",
        NODES,
        "born",
        (NOON, "soon", NOON),
        r"nodes\.user\.time",
        "is 'soon': not an ISO",
        'time = "born"',
    ),
    Fault(
        "time of a node null",
        NODES,
        "born",
        (NOON, None, NOON),
        r"nodes\.user\.time",
        "is null",
        'time = "born"',
    ),
    end("end null", "user", ("u1", None, "u3"), "is null"),
    end("end unknown", "user", ("u1", "u9", "u3"), "is '[un]9', and no 'user' has this id"),
    end("end no integer", "item", ("1", "x", "3"), "is 'x'"),
    end("end of a fraction in text", "item", ("1", "1.5", "3"), r"is '1\.5'"),
    end("end beyond int64", "item", ("1", "9" * 20, "3"), r"'9+'"),
    end("end unknown number", "item", (1, 99, 3), r"is '?99'?, and no 'item'"),
    end("end null number", "item", (1, None, 3), "is null"),
    moment("no time", "today", "is 'today': not an ISO 8601"),
    moment("no such day", "2024-02-31T00:00:00Z", "is '2024-02-31T00:00:00Z': not an ISO 8601"),
    moment("year of six digits", "999999-01-01T00:00:00Z", "is '999999-01-01T00:00:00Z'"),
    moment("time null", None, "is null"),
    moment(
        "time in another format",
        "2024",
        "is '2024'.* does not have the format",
        'time_format = "%Y-%m-%d"\ntimezone = "UTC"',
    ),
    moment(
        "hour that clocks leave out",
        "2024-03-31T02:30:00",
        "exists twice or never",
        'timezone = "Europe/Berlin"',
    ),
    Fault(
        "number of an edge",
        EDGES,
        "price",
        ("1", "x", "3"),
        r"columns\.price",
        "is 'x': not a number",
        'columns.price = "number"',
    ),
    Fault(
        "relation null",
        EDGES,
        "relation",
        ("a", None, "b"),
        r"columns\.relation|relation",
        "is null",
        'columns.relation = "relation"',
    ),
)


CASES = [(fault, form) for fault in FAULTS for form in fault.forms]


def tables_of(fault: Fault, *, sound: bool = False) -> dict[str, dict[str, list[Any]]]:
    """The tables, of which one has the fault; or these with another sound row in place of it."""
    rows = {table: {name: [*of] for name, of in columns.items()} for table, columns in SOUND.items()}
    first, bad, last = fault.values
    if not sound:
        rows[fault.table][fault.column] = [first, bad, last]
    elif fault.column == "at" or fault.column not in rows[fault.table]:
        rows[fault.table][fault.column] = [first, first, last] if fault.row == 2 else [1, 2, 3]
    return rows


def spec_of(fault: Fault, places: Mapping[str, str], items: str = 'files = ["items.parquet"]') -> str:
    """The spec of all tables."""
    more = {table: fault.spec if fault.table == table else "" for table in SOUND}
    return (
        f'[nodes.user]\n{places[NODES]}\nid = "id"\n{more[NODES]}\n[nodes.item]\n{items}\nid = "id"\n'
        f'[edges."user buys item"]\n{places[EDGES]}\nsource = "user"\ndestination = "item"\ntime = "at"\n'
        f"{more[EDGES]}\n"
    )


def write(folder: Path, tables: Mapping[str, Mapping[str, Any]], fault: Fault, form: Form) -> str:
    """Write the tables, the one with the fault in the form; return their spec."""
    (folder / "items.parquet").write_bytes(ITEMS)
    places = {}
    for table, columns in tables.items():
        of = form if table == fault.table else PARQUET
        of.write(folder, table, columns)
        places[table] = of.spec.format(table=table)
    return spec_of(fault, places)


def check(ran: Ran, fault: Fault, form: Form) -> None:
    assert ran.code == 2, ran
    place = form.place.format(table=fault.table).replace("row 2", f"row {fault.row}")
    refused(ran.stderr, "^khop: ", place, fault.key, fault.says)


@pytest.mark.core(6)
@pytest.mark.filterwarnings("default")  # notes of the command
@pytest.mark.parametrize(("fault", "form"), CASES, ids=str)
def test_a_value_is_refused_with_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, khop_command: Command, fault: Fault, form: Form
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shop.toml").write_text(write(tmp_path, tables_of(fault), fault, form))
    check(khop_command("import", "shop.toml", "out", "--threads", "1"), fault, form)
    assert not (tmp_path / "out").exists()


@pytest.mark.core(2)
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize(("fault", "form"), [case for case in CASES if case[0].appends], ids=str)
def test_a_value_to_append_is_refused_with_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, khop_command: Command, fault: Fault, form: Form
) -> None:
    """Users n1 to n3, and edges from them to items of the graph."""
    monkeypatch.chdir(tmp_path)
    sound, day = tmp_path / "sound", tmp_path / "day"
    sound.mkdir()
    day.mkdir()
    (sound / "shop.toml").write_text(write(sound, tables_of(fault, sound=True), fault, PARQUET))
    import_tables(sound / "shop.toml", "shop")
    tables = tables_of(fault)
    for ends in (tables[NODES]["id"], tables[EDGES]["user"]):
        ends[:] = [id and id.replace("u", "n") for id in ends]
    text = write(day, tables, fault, form).replace('files = ["items.parquet"]\nid = "id"', "")
    (day / "day.toml").write_text(text)
    before = khop.open_folder("shop").fingerprint
    check(khop_command("append", "shop", "day/day.toml"), fault, form)
    assert khop.open_folder("shop").fingerprint == before


@pytest.mark.core(2)
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("fault", [fault for fault in FAULTS if fault.forms != (CSV,)], ids=str)
def test_a_value_of_a_table_in_memory_is_refused_with_its_place(tmp_path: Path, fault: Fault) -> None:
    spec = tomllib.loads(write(tmp_path, tables_of(fault), fault, PARQUET))
    key = {NODES: ("nodes", "user"), EDGES: ("edges", "user buys item")}[fault.table]
    of = spec[key[0]][key[1]]
    del of["files"]
    of["rows"] = pandas.read_parquet(tmp_path / f"{fault.table}.parquet", dtype_backend="pyarrow")
    with pytest.raises(ValueError, match=r"the table of ") as error:
        import_tables(spec, tmp_path / "out", folder=tmp_path)
    refused(str(error.value), rf"the table of .*{key[1]}.*, row {fault.row}\b", fault.key, fault.says)
