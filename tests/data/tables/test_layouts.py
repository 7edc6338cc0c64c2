"""Layouts of published tables: imported by specs of at most 15 lines, and trained for an epoch."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import khop
from khop import import_tables
from khop.cli.start import run


def _write(folder: Path, name: str, lines: list[str]) -> None:
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text("\n".join(lines) + "\n")


def _elliptic(folder: Path) -> None:
    rng = np.random.default_rng(0)
    features = [f"{100 + n},{1 + n % 3},{rng.normal():.4f},{rng.normal():.4f}" for n in range(60)]
    _write(folder, "features.csv", features)
    words = ["unknown", "1", "2"]
    _write(folder, "classes.csv", ["txId,class", *(f"{100 + n},{words[n % 3]}" for n in reversed(range(60)))])
    _write(folder, "edges.csv", ["txId1,txId2", *(f"{100 + n},{101 + n}" for n in range(59))])


def _umls(folder: Path) -> None:
    triples = [f"c{n % 13}\t{['affects', 'causes', 'treats'][n % 3]}\tc{(n * n + 1) % 13}" for n in range(78)]
    for name, part in {"train": triples[:60], "valid": triples[60:70], "test": triples[70:]}.items():
        _write(folder, f"{name}.txt", part)


def _openflights(folder: Path) -> None:
    country = ["Peru", "Chad", "Fiji"]
    codes = ["\\N" if n % 4 == 0 else f"A{n:02d}" for n in range(40)]
    heights = ["\\N" if n % 5 == 0 else str(n) for n in range(40)]
    airports = [f'{n},"Airport {n}",{country[n % 3]},{codes[n]},{n}.5,{heights[n]}' for n in range(40)]
    _write(folder, "airports.dat", airports)
    routes = [f"2B,{n % 40},{(7 * n + 1) % 40},{'Y' if n % 2 else ''},CR2" for n in range(120)]
    _write(folder, "routes.dat", [*routes, "2B,\\N,3,,CR2"])


def _amazon(folder: Path) -> None:
    def lines(name: str, rows: list[dict[str, object]]) -> None:
        (folder / name).write_bytes(gzip.compress("".join(json.dumps(row) + "\n" for row in rows).encode()))

    lines("meta.json.gz", [
        {"asin": f"B{n:03d}", "title": f"a good book {n}", "price": 3.5 * n if n % 3 else None,
         "also_buy": [f"B{n + 1:03d}"], "details": {"pages": n}} for n in range(30)
    ])  # fmt: skip
    lines("reviews.json.gz", [
        {"reviewerID": f"U{n % 12}", "asin": f"B{(5 * n) % 30:03d}", "overall": 1.0 + n % 5,
         "unixReviewTime": 1_400_000_000 + 86_400 * n, "reviewTime": "05 3, 2014"} for n in range(90)
    ])  # fmt: skip


SPECS: dict[str, tuple[Callable[[Path], None], str, list[str]]] = {
    "elliptic": (
        _elliptic,
        """
[nodes.tx]
files = ["features.csv"]
header = "no"
id = "0"
columns = { "1" = "number", "2" = "number", "3" = "number" }
label = "class"
split = { ratio = [0.6, 0.2, 0.2] }
[nodes.tx.also]
files = ["classes.csv"]
id = "txId"
missing = ["unknown"]
[edges."tx pays tx"]
files = ["edges.csv"]
source = "txId1"
destination = "txId2"
""",
        ["--task", "node-classification", "--target", "tx"],
    ),
    "umls": (
        _umls,
        """
splits = { train = "train.txt", val = "valid.txt", test = "test.txt" }
[nodes.concept]
[edges."concept to concept"]
format = "csv"
delimiter = "\\t"
header = "no"
source = "0"
relation = "1"
destination = "2"
""",
        ["--task", "link-prediction", "--target", "concept to concept", "--link-relation", "relation",
         "--link-decoder", "distmult"],
    ),
    "openflights": (
        _openflights,
        """
[nodes.airport]
files = ["airports.dat"]
format = "csv"
header = "no"
missing = ["\\\\N"]
id = "0"
columns = { "4" = "number", "5" = "number", iata = { kind = "category", column = "3", encoding = "embedding" } }
[edges."airport route airport"]
files = ["routes.dat"]
format = "csv"
header = "no"
missing = ["\\\\N"]
source = "1"
destination = "2"
nulls = "drop"
""",
        ["--task", "link-prediction", "--target", "airport route airport"],
    ),
    "amazon": (
        _amazon,
        """
[nodes.user]
[nodes.book]
files = ["meta.json.gz"]
id = "asin"
columns = { title = { kind = "text", width = 8 }, price = "number" }
[edges."user reviews book"]
files = ["reviews.json.gz"]
source = "reviewerID"
destination = "asin"
time = "unixReviewTime"
unit = "s"
reverse = "reviewed-by"
columns.overall = "number"
""",
        ["--task", "link-prediction", "--target", "user reviews book", "--embedding", "4"],
    ),
}  # fmt: skip
EXPECTED = {
    "elliptic": ({"tx": 60}, {"tx pays tx": 59}),
    "umls": ({"concept": 13}, {"concept to concept": 78}),
    "openflights": ({"airport": 40}, {"airport route airport": 120}),
    "amazon": ({"user": 12, "book": 30}, {"user reviews book": 90, "book reviewed-by user": 90}),
}


@pytest.mark.long
@pytest.mark.parametrize("name", SPECS)
def test_a_layout_is_imported_and_trained(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write, text, task = SPECS[name]
    write(tmp_path)
    assert len(text.strip().splitlines()) <= 15
    (tmp_path / "spec.toml").write_text(text)
    done = import_tables(tmp_path / "spec.toml", tmp_path / "graph")
    assert (done.nodes, done.edges) == EXPECTED[name]
    graph = khop.open_graph(tmp_path / "graph")
    if name == "elliptic":
        assert graph.columns["tx"]["label"].tolist() == [-1, 0, 1] * 20
    if name == "umls":
        columns = graph.columns["concept", "to", "concept"]
        assert np.bincount(columns["split"]).tolist() == [60, 10, 8]
        assert np.bincount(columns["relation"]).tolist() == [26, 26, 26]
    monkeypatch.chdir(tmp_path)
    sizes = ["--epochs", "1", "--batch-size", "16", "--hidden", "8", "--fanouts", "3,3"]
    with pytest.raises(SystemExit) as left:
        run(["train", "--graph", "graph", *task, *sizes])
    assert not left.value.code


def test_options_of_files_concern_all_columns_or_some(tmp_path: Path) -> None:
    lines = ["id;price;size;ok;at", "a;1,5;NA;Y;1.25", "b;?;NA;N;2", "c;2,5;3,0;;3.5"]
    _write(tmp_path, "items.data", lines)
    _write(tmp_path, "more/day=1/x.jsonl", ['{"from": "a", "to": "b"}', '{"from": "b", "to": "c"}'])
    _write(tmp_path, "more/day=2/x.jsonl", ['{"from": "c", "to": "a"}'])
    spec = {
        "time_unit": "ms",
        "nodes": {"item": {
            "files": ["items.data"], "format": "csv", "delimiter": ";", "decimal": ",", "id": "id",
            "missing": {"price": ["?"], "size": ["NA"]}, "time": "at", "unit": "s",
            "columns": {
                "price": {"kind": "number", "scale": "none", "missing": "zero"},
                "size": {"kind": "number", "scale": "none", "missing": "zero"},
                "ok": {"kind": "bool", "true": ["Y"], "false": ["N"]},
            },
        }},
        "edges": {"item next item": {
            "files": ["more/*/*.jsonl"], "source": "from", "destination": "to", "where": "day = '1'",
        }},
    }  # fmt: skip
    done = import_tables(spec, tmp_path / "graph", folder=tmp_path)
    columns = khop.open_graph(tmp_path / "graph").columns["item"]
    assert columns["x"].tolist() == [[1.5, 0, 1, 0], [0, 0, 0, 0], [2.5, 3, 0, 1]]
    assert columns["time"].tolist() == [1250, 2000, 3500]
    assert done.edges == {"item next item": 2}


@pytest.mark.long
def test_forms_of_a_table_hold_for_later_tables_too(tmp_path: Path) -> None:
    """Appended, and encoded for predictions, later rows have the columns that all rows at once have."""
    head, rows = "id;price;color;at", [
        "a;1,5;red;2020-01-01 00:00:00.25", "b;?;none;2020-01-01 00:00:01.5",
        "c;2,5;blue;2020-01-02 00:00:00.125", "d;?;none;2020-01-02 00:00:02.0",
    ]  # fmt: skip
    ends = ['{"from": "a", "to": "b"}', '{"from": "c", "to": "d"}']
    for name, some in {"all": slice(4), "day=1": slice(2), "day=2": slice(2, 4)}.items():
        _write(tmp_path, f"{name}/items.data", [head, *rows[some]])
    for name, some in {"day=1": ends[:1], "day=2": ends[1:]}.items():
        _write(tmp_path, f"links/{name}/x.jsonl", some)

    def spec(day: str, links: str) -> dict[str, Any]:
        return {
            "time_unit": "ms",
            "nodes": {"item": {
                "files": [f"{day}/items.data"], "format": "csv", "delimiter": ";", "decimal": ",",
                "time": "at", "time_format": "%Y-%m-%d %H:%M:%S.%f", "timezone": "UTC",
                "columns": {
                    "price": {"kind": "number", "scale": "none", "missing": ["?"]},
                    "color": {"kind": "category", "missing": ["none"]},
                },
            }},
            "edges": {"item next item": {
                "files": [f"links/{links}/*.jsonl"], "source": "from", "destination": "to", "where": "day > '0'",
            }},
        }  # fmt: skip

    import_tables(spec("day=1", "day=1"), tmp_path / "graph", folder=tmp_path)
    columns = khop.open_graph(tmp_path / "graph").columns["item"]
    assert columns["x"].tolist() == [[1.5, 0, 0, 1], [1.5, 0, 1, 0]]  # the mean, and no color
    assert columns["time"].tolist() == [1577836800250, 1577836801500]
    second = spec("day=2", "day=2")
    import_tables(second, tmp_path / "later", folder=tmp_path, encoders=tmp_path / "graph")
    later = khop.open_graph(tmp_path / "later").columns["item"]
    khop.append(tmp_path / "graph", second, folder=tmp_path)
    whole = khop.open_graph(tmp_path / "graph").columns["item"]
    assert later["x"].tolist() == whole["x"][2:].tolist() == [[2.5, 1, 0, 0], [1.5, 0, 1, 0]]
    assert later["time"].tolist() == whole["time"][2:].tolist() == [1577923200125, 1577923202000]


@pytest.mark.parametrize(
    "files", [["parts/*.txt"], ["./parts/train.txt", "parts/t*st.txt"], ["parts/../parts/*.txt"], None]
)
@pytest.mark.parametrize("place", ["splits", "split"])
def test_a_split_by_files_finds_them_among_those_of_the_table(
    tmp_path: Path, files: list[str] | None, place: str
) -> None:
    for name, lines in {"train": ["a b", "b c"], "test": ["c a"]}.items():
        _write(tmp_path, f"parts/{name}.txt", lines)
    parts = {"train": "parts/train.txt", "test": "parts/test.txt"}
    table = {"format": "csv", "delimiter": " ", "header": "no", "source": "0", "destination": "1"}
    table |= {} if files is None else {"files": files}
    table |= {"split": parts} if place == "split" else {}
    spec = {"nodes": {"n": {}}, "edges": {"n to n": table}} | ({"splits": parts} if place == "splits" else {})
    import_tables(spec, tmp_path / "graph", folder=tmp_path)
    edges = khop.open_graph(tmp_path / "graph").columns["n", "to", "n"]
    assert sorted(edges["split"].tolist()) == [0, 0, 2]


def test_a_file_of_a_split_that_the_table_lacks_is_an_error(tmp_path: Path) -> None:
    for name in ("train", "test"):
        _write(tmp_path, f"{name}.txt", ["a b"])
    table = {"files": ["train.txt"], "format": "csv", "delimiter": " ", "header": "no", "source": "0",
             "destination": "1", "split": {"train": "train.txt", "test": "test.txt"}}  # fmt: skip
    with pytest.raises(
        ValueError, match="train.txt, test.txt: must be among the files of .*; add them to files"
    ):
        import_tables({"nodes": {"n": {}}, "edges": {"n to n": table}}, tmp_path / "graph", folder=tmp_path)


def test_a_second_table_is_joined_and_appended(tmp_path: Path) -> None:
    spec = {
        "nodes": {"tx": {
            "rows": pa.table({"id": [3, 1, 2]}), "id": "id", "columns": {"size": "raw"},
            "label": "class", "also": [
                {"rows": pa.table({"tx": ["1", "2", "3", "9"], "size": [10, 20, 30, 90]}), "id": "tx"},
                {"rows": pa.table({"id": [1, 2], "class": ["unknown", "bad"]}), "id": "id",
                 "missing": ["unknown"]},
            ],
        }},
        "edges": {"tx to tx": {
            "rows": pa.table({"a": [1], "b": [2], "how": ["pays"]}), "source": "a", "destination": "b",
            "relation": "how",
        }},
    }  # fmt: skip
    done = import_tables(spec, tmp_path / "graph")
    columns = khop.open_graph(tmp_path / "graph").columns["tx"]
    assert (columns["size"].tolist(), columns["label"].tolist()) == ([30, 10, 20], [-1, -1, 0])
    assert "nodes.tx.also[0]: 1 rows have an id that is not a node" in done.notes
    later = {
        "nodes": {"tx": {
            "rows": pa.table({"id": [4]}), "id": "id",
            "also": {"rows": pa.table({"tx": ["4"], "size": [40]}), "id": "tx"},
        }},
        "edges": {"tx to tx": {"rows": pa.table({"a": [4], "b": [1], "how": ["pays"]}), "source": "a",
                               "destination": "b"}},
    }  # fmt: skip
    khop.append(tmp_path / "graph", later)
    assert khop.open_graph(tmp_path / "graph").columns["tx"]["size"].tolist() == [30, 10, 20, 40]
    later["nodes"]["tx"]["rows"] = pa.table({"id": [5]})
    later["nodes"]["tx"]["also"]["rows"] = pa.table({"tx": ["5"], "size": [50]})
    later["edges"]["tx to tx"]["rows"] = pa.table({"a": [5], "b": [1], "how": ["owes"]})
    with pytest.raises(ValueError, match="'owes', which is not one of the 1 relations of the graph"):
        khop.append(tmp_path / "graph", later)


def test_blanks_around_ids_of_csv_files_do_not_hide_their_rows(tmp_path: Path) -> None:
    """Lists, joined tables, edges and nodes all lose the blanks."""
    _write(tmp_path, "users.csv", ["id,y", " u1,a", "u2 ,b", "u3,a", " u4 ,b"])
    _write(tmp_path, "ages.csv", ["user,age", "u1,10", " u2,20", "u4,40"])
    _write(tmp_path, "train.txt", ["u1 ", "u2"])
    _write(tmp_path, "valid.txt", [" u4"])
    _write(tmp_path, "edges.csv", ["a,b", "u1 , u2"])
    spec = {
        "splits": {"train": "train.txt", "val": "valid.txt"},
        "nodes": {"u": {
            "files": ["users.csv"], "id": "id", "label": "y", "where": "age IS NOT NULL",
            "columns": {"age": "raw"}, "also": {"files": ["ages.csv"], "id": "user"},
        }},
        "edges": {"u to u": {"files": ["edges.csv"], "source": "a", "destination": "b"}},
    }  # fmt: skip
    done = import_tables(spec, tmp_path / "graph", folder=tmp_path)
    graph = khop.open_graph(tmp_path / "graph")
    assert graph.columns["u"]["age"].tolist() == [10, 20, 40]
    assert {name: graph.split(name)["u"].tolist() for name in graph.split_names} == {
        "train": [0, 1],
        "val": [2],
    }
    assert not done.notes


def test_where_excludes_null_ids_of_joined_tables_too(tmp_path: Path) -> None:
    _write(tmp_path, "train.txt", ["1"])
    _write(tmp_path, "valid.txt", ["3"])
    users = pa.table({"id": [1, None, 3], "y": ["a", "b", "a"]})
    spec: dict[str, Any] = {
        "splits": {"train": "train.txt", "val": "valid.txt"},
        "nodes": {"u": {
            "rows": users, "id": "id", "label": "y", "columns": {"age": "raw"}, "where": "id IS NOT NULL",
            "also": {"rows": pa.table({"user": [3, None, 1], "age": [30, 20, 10]}), "id": "user",
                     "where": "\"user\" IS NOT NULL"},
        }},
    }  # fmt: skip
    import_tables(spec, tmp_path / "graph", folder=tmp_path)
    graph = khop.open_graph(tmp_path / "graph")
    assert graph.columns["u"]["age"].tolist() == [10, 30]
    assert {name: graph.split(name)["u"].tolist() for name in graph.split_names} == {"train": [0], "val": [1]}
    del spec["nodes"]["u"]["where"]
    with pytest.raises(
        ValueError, match=r"row 2: nodes\.u\.id is null; correct the row, or exclude it by where"
    ):
        import_tables(spec, tmp_path / "refused", folder=tmp_path)


def test_lists_of_ids_split_nodes(tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": [1, 2, 3, 4], "y": ["a", "b", "a", "b"]}), tmp_path / "n.parquet")
    for name, ids in {"train": ["4", "1"], "valid": ["2"]}.items():
        _write(tmp_path, f"{name}.txt", ids)
    spec = {
        "splits": {"train": "train.txt", "val": "valid.txt"},
        "nodes": {"n": {"files": ["n.parquet"], "id": "id", "label": "y"}},
    }
    import_tables(spec, tmp_path / "graph", folder=tmp_path)
    graph = khop.open_graph(tmp_path / "graph")
    splits = {name: graph.split(name)["n"].tolist() for name in graph.split_names}
    assert splits == {"train": [0, 3], "val": [1]}


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("4,1\n2\n", "splits: train.txt: line 1 has 2 fields; give one id per line"),
        ("", "splits: train.txt: is empty; give one id per line"),
        ("4\n\n1\n \n\n", None),
    ],
)
def test_a_list_of_ids_has_one_per_line(content: str, sentence: str | None, tmp_path: Path) -> None:
    """Empty lines are skipped."""
    (tmp_path / "n.csv").write_text("id,y\n1,a\n2,b\n3,a\n4,b\n")
    (tmp_path / "train.txt").write_text(content)
    (tmp_path / "valid.txt").write_text("2\n")
    spec = {
        "splits": {"train": "train.txt", "val": "valid.txt"},
        "nodes": {"n": {"files": ["n.csv"], "id": "id", "label": "y"}},
    }
    if sentence is not None:
        with pytest.raises(ValueError, match=f"^{sentence}$"):
            import_tables(spec, tmp_path / "graph", folder=tmp_path)
        return
    import_tables(spec, tmp_path / "graph", folder=tmp_path)
    assert khop.open_graph(tmp_path / "graph").split("train")["n"].tolist() == [0, 3]


def test_an_id_in_two_lists_of_a_split_is_named_with_its_file(tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": [1, 2, 3, 4], "y": ["a", "b", "a", "b"]}), tmp_path / "n.parquet")
    for name, ids in {"train": ["4", "1"], "valid": ["2", "1"]}.items():
        _write(tmp_path, f"{name}.txt", ids)
    spec = {
        "splits": {"train": "train.txt", "val": "valid.txt"},
        "nodes": {"n": {"files": ["n.parquet"], "id": "id", "label": "y"}},
    }
    with pytest.raises(ValueError, match=r"valid.txt, row 2: splits: the id '1' is also in an earlier row"):
        import_tables(spec, tmp_path / "graph", folder=tmp_path)


def test_triples_without_their_delimiter_are_told_to_give_it(tmp_path: Path) -> None:
    _write(tmp_path, "train.txt", ["a\tr\tb", "b\tr\tc"])
    edges = {"files": ["train.txt"], "header": "no", "source": "0", "relation": "1", "destination": "2"}
    with pytest.raises(ValueError, match=r"no column '2' in train.txt; each row has only one .* = \"\\t\""):
        import_tables({"nodes": {"e": {}}, "edges": {"e to e": edges}}, tmp_path / "graph", folder=tmp_path)
