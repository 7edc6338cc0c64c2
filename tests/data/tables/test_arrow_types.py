"""Every type of Arrow in every role of a column: read right, or refused with a sentence."""

from __future__ import annotations

import json
import re
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest

from khop.data.tables.append import append
from khop.data.tables.packages import TableFault
from khop.data.tables.pipeline import import_tables
from khop.graph.folder import import_record, open_folder

N = 12
TEXTS = [f"n{i}" for i in range(N)]
NUMBERS = list(range(N))
FLOATS = [i + 0.0 for i in range(N)]
DAYS = [date(2020, 1, 1 + i) for i in range(N)]
INSTANTS = [datetime(1960, 1, 1 + i, 7) for i in range(N)]
PAIRS = [[i, i + 1] for i in range(N)]
UUIDS = [UUID(int=i + 2**100) for i in range(N)]

ID, CLASS, NUMBER, CATEGORY, FLAG = "id", "class", "number", "category", "flag"
TIME, SPLIT, VECTOR, WEIGHT = "time", "split", "vector", "weight"
ROLES = {ID, CLASS, NUMBER, CATEGORY, FLAG, TIME, SPLIT, VECTOR, WEIGHT}
TEXT_ROLES = {ID, CLASS, CATEGORY}
INTEGER_ROLES = {ID, CLASS, NUMBER, CATEGORY, TIME, WEIGHT}
FLOAT_ROLES = INTEGER_ROLES - {ID}


def extended(name: str, values: list[Any], storage: pa.DataType) -> pa.Array:
    kind: Any = {
        "uuid": pa.uuid, "bool8": pa.bool8, "json": lambda: pa.json_(pa.string()),
        "tensor": lambda: pa.fixed_shape_tensor(pa.float32(), [2]),
    }[name]()  # fmt: skip
    return pa.ExtensionArray.from_storage(kind, pa.array(values, storage))


def run_ends(values: list[str]) -> pa.Array:
    return pa.RunEndEncodedArray.from_arrays(pa.array(range(1, N + 1), pa.int32()), pa.array(values))


def uuid_lists() -> pa.Array:
    uuids = extended("uuid", [u.bytes for u in UUIDS], pa.binary(16))
    return pa.ListArray.from_arrays(pa.array(range(N + 1), pa.int32()), uuids)


# An array, the roles in which it is read, and the array that gives the same graph.
CASES: dict[str, tuple[Any, set[str], Any]] = {
    "bool": (pa.array([i % 2 == 0 for i in NUMBERS]), {CLASS, NUMBER, CATEGORY, FLAG, WEIGHT}, None),
    "int8": (pa.array(NUMBERS, pa.int8()), INTEGER_ROLES, pa.array(NUMBERS)),
    "int64": (pa.array([2**62 + i for i in NUMBERS]), INTEGER_ROLES, None),
    "uint8": (pa.array(NUMBERS, pa.uint8()), INTEGER_ROLES, pa.array(NUMBERS)),
    "uint64": (pa.array([2**63 + i for i in NUMBERS], pa.uint64()), INTEGER_ROLES - {ID, TIME}, None),
    "float16": (pa.array(np.arange(N, dtype=np.float16)), FLOAT_ROLES, pa.array(FLOATS)),
    "float32": (pa.array(FLOATS, pa.float32()), FLOAT_ROLES, pa.array(FLOATS)),
    "decimal128": (pa.array(map(Decimal, NUMBERS), pa.decimal128(10)), FLOAT_ROLES - {TIME}, None),
    "decimal256": (pa.array(map(Decimal, NUMBERS), pa.decimal256(40)), FLOAT_ROLES - {TIME}, None),
    "string": (pa.array(TEXTS), TEXT_ROLES, pa.array(TEXTS, pa.large_string())),
    "string_view": (pa.array(TEXTS, pa.string_view()), TEXT_ROLES, pa.array(TEXTS)),
    "binary": (pa.array(TEXTS, pa.binary()), {CLASS, CATEGORY}, pa.array(TEXTS)),
    "binary_view": (pa.array(TEXTS, pa.binary_view()), {CLASS, CATEGORY}, pa.array(TEXTS)),
    "not UTF-8": (pa.array([bytes([255, i]) for i in NUMBERS]), set(), None),
    "fixed binary": (pa.array([f"{i:02}" for i in NUMBERS], pa.binary(2)), {CLASS, CATEGORY}, None),
    "date32": (pa.array(DAYS), {CLASS, CATEGORY, TIME}, None),
    "date64": (pa.array(DAYS, pa.date64()), {CLASS, CATEGORY, TIME}, pa.array(DAYS)),
    "timestamp": (pa.array(INSTANTS, pa.timestamp("us")), {CLASS, CATEGORY, TIME}, None),
    "timestamp of a zone": (pa.array(INSTANTS, pa.timestamp("s", "Asia/Tokyo")), {CLASS, CATEGORY, TIME}, None),
    "time32": (pa.array([time(i) for i in NUMBERS], pa.time32("s")), {CLASS, CATEGORY}, None),
    "duration": (pa.array([timedelta(i) for i in NUMBERS]), {CLASS, CATEGORY}, None),
    "interval": (pa.array([(i, i, i) for i in NUMBERS], pa.month_day_nano_interval()), set(), None),
    "list": (pa.array(PAIRS), {VECTOR}, None),
    "list of views": (pa.array([[t] for t in TEXTS], pa.list_(pa.string_view())), set(), None),
    "large list": (pa.array(PAIRS, pa.large_list(pa.int32())), {VECTOR}, pa.array(PAIRS)),
    "fixed list": (pa.array(PAIRS, pa.list_(pa.float32(), 2)), {VECTOR}, pa.array(PAIRS)),
    "list without nulls": (
        pa.array(PAIRS, pa.list_(pa.field("element", pa.int64(), nullable=False))), {VECTOR}, pa.array(PAIRS),
    ),
    "list of uuids": (uuid_lists(), set(), None),
    "list view": (pa.array(PAIRS, pa.list_view(pa.int64())), {VECTOR}, pa.array(PAIRS)),
    "struct": (pa.array([{"a": i} for i in NUMBERS]), set(), None),
    "map": (pa.array([[("k", i)] for i in NUMBERS], pa.map_(pa.string(), pa.int64())), set(), None),
    "dictionary": (pa.array(TEXTS).dictionary_encode(), TEXT_ROLES, pa.array(TEXTS)),
    "dictionary of views": (
        pa.DictionaryArray.from_arrays(pa.array(NUMBERS), pa.array(TEXTS, pa.string_view())),
        TEXT_ROLES, pa.array(TEXTS),
    ),
    "dictionary of integers": (pa.array(NUMBERS).dictionary_encode(), INTEGER_ROLES, pa.array(NUMBERS)),
    "dictionary of dates": (pa.array(DAYS).dictionary_encode(), {CLASS, CATEGORY, TIME}, pa.array(DAYS)),
    "run ends": (run_ends(TEXTS), TEXT_ROLES, pa.array(TEXTS)),
    "null": (pa.nulls(N), {CLASS, NUMBER, CATEGORY, FLAG, SPLIT, WEIGHT}, None),
    "union": (pa.UnionArray.from_sparse(pa.array([0] * N, pa.int8()), [pa.array(NUMBERS)]), set(), None),
    "uuid": (extended("uuid", [u.bytes for u in UUIDS], pa.binary(16)), TEXT_ROLES, pa.array(map(str, UUIDS))),
    "bool8": (extended("bool8", [i % 2 for i in NUMBERS], pa.int8()), FLOAT_ROLES | {FLAG}, None),
    "json": (extended("json", ['{"a": 1}'] * N, pa.string()), {CLASS, CATEGORY}, None),
    "tensor": (extended("tensor", PAIRS, pa.list_(pa.float32(), 2)), {VECTOR}, pa.array(PAIRS)),
}  # fmt: skip


def spec(role: str, array: pa.Array, folder: Path | None = None, suffix: str = "") -> dict[str, Any]:
    """Return the spec of a graph with the array in a role, in memory or in files."""
    ids = pa.array([f"u{i}" for i in NUMBERS])
    nodes: dict[str, Any] = {
        "id": ids,
        "x": pa.array(FLOATS),
        "y": pa.array(["a", "b"] * (N // 2)),
        "p": None,
    }
    node: dict[str, Any] = {"id": "id", "columns": {"x": "number"}, "label": "y", "split": {"column": "p"}}
    nodes["p"] = pa.array(["train"] * 10 + ["val", "test"])
    edge: dict[str, Any] = {"source": "s", "destination": "d"}
    edges = {"s": ids, "d": ids}
    match role:
        case "id":
            nodes["id"] = edges["s"] = edges["d"] = array
        case "class":
            nodes["y"] = array
        case "time":
            nodes["t"] = array
            node |= {"time": "t", "timezone": "UTC"}
            if (
                pa.types.is_integer(array.type)
                or pa.types.is_floating(array.type)
                or array.type == pa.bool8()
            ):
                node["unit"] = "s"
            if pa.types.is_dictionary(array.type) and pa.types.is_integer(array.type.value_type):
                node["unit"] = "s"
        case "split":
            nodes["p"] = array
        case "weight":
            edges["w"] = array
            edge["columns"] = {"w": "number"}
        case _:
            kind = {"flag": "bool"}.get(role, role)
            nodes["x"], node["columns"] = array, {"x": kind}
    tables = {"node": pa.table(nodes), "edge": pa.table(edges)}
    if folder is None:
        node["rows"], edge["rows"] = tables["node"], tables["edge"]
    else:
        write = {"parquet": pq.write_table, "arrow": feather.write_feather}[suffix]
        for name, table in tables.items():
            write(table, folder / f"{name}.{suffix}")
        node["files"], edge["files"] = ([str(folder / f"{name}.{suffix}")] for name in tables)
    return {"nodes": {"user": node}, "edges": {"user knows user": edge}}


def arrays(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*.npy")}


@pytest.mark.core(4)
@pytest.mark.filterwarnings("ignore:times without a zone")
@pytest.mark.parametrize("name", CASES)
def test_a_type_is_read_or_refused_in_each_role(name: str, tmp_path: Path) -> None:
    array, read, same = CASES[name]
    for role in sorted(ROLES):
        out = tmp_path / role
        if role not in read:
            with pytest.raises(ValueError, match=r"(nodes\.user|edges\..*)\.\w+") as refused:
                import_tables(spec(role, array), out)
            assert type(refused.value) in (ValueError, TableFault)  # Arrow's own errors are subclasses
            assert re.search(r"; \w+", str(refused.value)) or " must be " in str(refused.value)
            continue
        import_tables(spec(role, array), out)
        if same is not None:
            import_tables(spec(role, same), tmp_path / f"{role}-same")
            assert arrays(out) == arrays(tmp_path / f"{role}-same"), role


@pytest.mark.parametrize("suffix", ["parquet", "arrow"])
@pytest.mark.parametrize("name", ["string_view", "dictionary", "uuid", "dictionary of dates", "list view"])
def test_files_have_these_types_too(name: str, suffix: str, tmp_path: Path) -> None:
    array, read, same = CASES[name]
    role = next(iter(sorted(read & {ID, TIME, VECTOR})))
    import_tables(spec(role, array, tmp_path, suffix), tmp_path / "out")
    import_tables(spec(role, same), tmp_path / "same")
    assert arrays(tmp_path / "out") == arrays(tmp_path / "same")


@pytest.mark.parametrize(
    "ids", ['{"a": 1}', "[1]", '[{"a": 1}]', '{"a": 1, "b": {"c": 2}}', '{"a": 1}\n7', '7\n{"a": 1}', '["x"]']
)
def test_objects_and_arrays_of_json_are_no_ids(ids: str, tmp_path: Path) -> None:
    lines = [f'{{"id": {one}, "x": 1}}' for one in ids.split("\n")]
    (tmp_path / "n.jsonl").write_text("\n".join(lines))
    node = {"files": [str(tmp_path / "n.jsonl")], "id": "id", "columns": {"x": "number"}}
    with pytest.raises(ValueError, match=r"^nodes\.user\.id: ids are .*; (give|convert) .*text or integers$"):
        import_tables({"nodes": {"user": node}}, tmp_path / "out")


def test_numbers_and_text_of_json_are_ids(tmp_path: Path) -> None:
    (tmp_path / "n.jsonl").write_text('{"id": 7, "x": 1}\n{"id": "u", "x": 2}\n')
    node = {"files": [str(tmp_path / "n.jsonl")], "id": "id", "columns": {"x": "number"}}
    assert import_tables({"nodes": {"user": node}}, tmp_path / "out").nodes == {"user": 2}


def test_ids_of_a_joined_table_are_checked_too(tmp_path: Path) -> None:
    also = {
        "rows": pa.table({"id": pa.array(map(Decimal, NUMBERS), pa.decimal128(10, 2)), "x": FLOATS}),
        "id": "id",
    }
    node = {"rows": pa.table({"id": NUMBERS}), "id": "id", "also": also, "columns": {"x": "number"}}
    with pytest.raises(
        ValueError, match=r"nodes\.user\.also\.id: ids are decimal128\(10, 2\); convert the col"
    ):
        import_tables({"nodes": {"user": node}}, tmp_path / "out")


def test_a_column_without_values_in_one_file_has_the_type_of_the_others(tmp_path: Path) -> None:
    empty, full = pa.table({"id": TEXTS, "x": pa.nulls(N)}), pa.table({"id": list("abc"), "x": [1, 2, 3]})
    for names in (("0", "1"), ("1", "0")):
        for name, table in zip(names, (empty, full), strict=True):
            pq.write_table(table, tmp_path / f"{name}.parquet")
        node = {"files": [str(tmp_path / "*.parquet")], "id": "id", "columns": {"x": "number"}}
        imported = import_tables({"nodes": {"user": node}}, tmp_path / f"out{names[0]}")
        assert imported.nodes == {"user": N + 3}
    wrong = pa.table({"id": ["z"], "x": ["text"]})
    pq.write_table(wrong, tmp_path / "2.parquet")
    with pytest.raises(
        ValueError, match=r"column 'x' is int64 in .*0.parquet and string in .*2.parquet; conv"
    ):
        import_tables({"nodes": {"user": node}}, tmp_path / "out")


def _parquet(path: Path, columns: dict[str, pa.Array]) -> None:
    pq.write_table(pa.table(columns), path)


def _arrow(path: Path, columns: dict[str, pa.Array]) -> None:
    with pa.ipc.new_file(path, pa.table(columns).schema) as writer:
        writer.write_table(pa.table(columns))


def _json(path: Path, columns: dict[str, pa.Array]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in pa.table(columns).to_pylist()))


WRITERS = {"parquet": _parquet, "arrow": _arrow, "jsonl": _json}
PAIRS_OF_TYPES = {  # types of a column in two files, and in one file of all rows
    "int64 and double": (pa.array([2**53, 2, 1]), pa.array([0.5, None, 4.0]), pa.float64()),
    "double and int64": (pa.array([0.5, None, 4.0]), pa.array([2**53, 2, 1]), pa.float64()),
    "int32 and int64": (pa.array([1, 2, 3], pa.int32()), pa.array([4, 2**40, None]), pa.int64()),
    "float and double": (pa.array([0.5, 2, 3], pa.float32()), pa.array([0.1, 5, None]), pa.float64()),
    "null and double": (pa.nulls(3), pa.array([0.5, 2, 3]), pa.float64()),
    "int64 and null": (pa.array([1, 2, 3]), pa.nulls(3), pa.int64()),
}


@pytest.mark.core(2)
@pytest.mark.filterwarnings("ignore:nodes.user.split")
@pytest.mark.parametrize("form", WRITERS)
@pytest.mark.parametrize("types", PAIRS_OF_TYPES)
def test_a_column_may_have_another_type_in_the_next_file(tmp_path: Path, form: str, types: str) -> None:
    """The graph is that of one file with all rows, whatever the types of the parts."""
    first, second, whole = PAIRS_OF_TYPES[types]
    ids = pa.array(range(3)), pa.array(range(3, 6), pa.int32())
    classes = pa.array([1, 2, 1]), pa.array([2.0, 1.0, 2.0])
    for number, values in enumerate((first, second)):
        columns = {"id": ids[number], "x": values, "label": classes[number]}
        WRITERS[form](tmp_path / f"{number}.{form}", columns)
    rows = {
        "id": pa.array(range(6)),
        "x": pa.concat_arrays([first.cast(whole), second.cast(whole)]),
        "label": pa.array([1, 2, 1, 2, 1, 2]),
    }
    _parquet(tmp_path / "all.parquet", rows)
    graphs = [
        import_tables(
            {
                "nodes": {
                    "user": {
                        "files": [str(tmp_path / name)],
                        "id": "id",
                        "columns": {"x": "number", "name": {"kind": "category", "column": "x"}},
                        "label": "label",
                        "split": {"ratio": [0.5, 0.25, 0.25]},
                    }
                }
            },
            tmp_path / f"out {number}",
        ).path
        for number, name in enumerate((f"?.{form}", "all.parquet"))
    ]
    found, wanted = (open_folder(path) for path in graphs)
    assert found.fingerprint == wanted.fingerprint
    assert import_record(found)["nodes"]["user"]["id"]["kind"] == "int64"


@pytest.mark.parametrize("form", WRITERS)
def test_integers_that_are_no_double_and_ids_are_refused(tmp_path: Path, form: str) -> None:
    """A value is never changed by the type of another file."""
    write = WRITERS[form]
    write(tmp_path / f"a.{form}", {"id": pa.array([1, 2]), "x": pa.array([7, 2**53 + 1])})
    write(tmp_path / f"b.{form}", {"id": pa.array([3, 4]), "x": pa.array([0.5, 2.0])})
    node = {"files": [str(tmp_path / f"?.{form}")], "id": "id", "columns": {"x": "number"}}
    says = (
        rf"a.{form}, (row group 0, )?row 2: the column 'x' is 9007199254740993: not exact as double, the "
        "common type of this column in all files; convert one of the files"
    )
    with pytest.raises(ValueError, match=says):
        import_tables({"nodes": {"user": node}}, tmp_path / "out")
    write(tmp_path / f"b.{form}", {"id": pa.array([3.0, 4.5]), "x": pa.array([1, 2])})
    says = (
        rf"^nodes\.user\.id: ids are int64 in .*a.{form} and double in .*b.{form}; convert the column to text"
    )
    with pytest.raises(ValueError, match=says):
        import_tables({"nodes": {"user": node}}, tmp_path / "out")


def test_appended_rows_may_have_another_type_than_those_of_the_graph(tmp_path: Path) -> None:
    def spec(ids: pa.Array, x: pa.Array, label: pa.Array) -> dict[str, Any]:
        rows = pa.table({"id": ids, "x": x, "label": label})
        columns = {
            "x": "number",
            "name": {"kind": "category", "column": "x"},
            "x_raw": {"kind": "raw", "column": "x"},
        }
        node = {"rows": rows, "id": "id", "columns": columns, "label": "label", "split": {"ratio": [1, 0, 0]}}
        return {"nodes": {"user": node}}

    integers = spec(pa.array([1, 2]), pa.array([3, 4]), pa.array([0, 1]))
    doubles = spec(pa.array([5, 6], pa.int32()), pa.array([4.0, 3.0]), pa.array([1.0, 0.0]))
    graph = import_tables(integers, tmp_path / "graph").path
    assert append(graph, doubles).nodes == {"user": 2}
    later = spec(pa.array([5, 6]), pa.array([4, 3]), pa.array([1, 0]))
    other = import_tables(integers, tmp_path / "other").path
    append(other, later)
    assert open_folder(graph).fingerprint == open_folder(other).fingerprint
