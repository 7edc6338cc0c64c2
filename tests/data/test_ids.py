"""Ids of text files stay as they stand, at each entrance: edge lists, tables, triples, appends, pairs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import khop
from khop import import_tables
from khop.cli.main import run
from khop.data.formats.edge_file import edge_list
from khop.kernels.id_table import StringKeys

# Lines of a file, and its ids as they first appear.
TABLE = [
    (["1.10,2.0", "1.1,2.00"], ["1.10", "2.0", "1.1", "2.00"]),
    (["18446744073709551615,18446744073709551614", "18446744073709551614,18446744073709551613"],
     ["18446744073709551615", "18446744073709551614", "18446744073709551613"]),
    (["true,false", "True,1"], ["true", "false", "True", "1"]),
    (["2020-01-01T00:00:00Z,x", "2020-01-01T01:00:00+01:00,x"],
     ["2020-01-01T00:00:00Z", "x", "2020-01-01T01:00:00+01:00"]),
    (["007,7", "7,08"], ["007", "7", "08"]),
    (["a, b", "b, a"], ["a", "b"]),
    (["NA,b", "null,c", "nan,d"], ["NA", "b", "null", "c", "nan", "d"]),
]  # fmt: skip
ROWS = {"files": ["rows.csv"], "header": "no", "source": "0"}


def spec_of(path: Path, lines: Sequence[str], **rules: Any) -> dict[str, Any]:  # noqa: ANN401
    (path / "rows.csv").write_text("\n".join(lines) + "\n")
    return {"nodes": {"n": {}}, "edges": {"n to n": {**ROWS, "destination": "1", **rules}}}


def ids_of(graph: Path) -> set[str]:
    ids = khop.open_ids(graph, "n")
    return {str(one) for one in ids.ids(range(khop.open_graph(graph).num_nodes("n")))}


def by_edge_list(path: Path, lines: Sequence[str]) -> set[str]:
    (path / "rows.csv").write_text("\n".join(lines) + "\n")
    ids = edge_list(path / "rows.csv", "no").ids
    return set(ids.strings()) if isinstance(ids, StringKeys) else {str(one) for one in ids}


def by_spec(path: Path, lines: Sequence[str]) -> set[str]:
    import_tables(spec_of(path, lines), path / "out", folder=path)
    return ids_of(path / "out")


def by_triples(path: Path, lines: Sequence[str]) -> set[str]:
    triples = [line.replace(",", ",likes,") for line in lines]
    import_tables(spec_of(path, triples, relation="1", destination="2"), path / "out", folder=path)
    return ids_of(path / "out")


def by_node_table(path: Path, lines: Sequence[str]) -> set[str]:
    ids = next(ids for of_row, ids in TABLE if of_row == lines)
    (path / "nodes.csv").write_text("id,x\n" + "".join(f"{one},1\n" for one in ids))
    spec = spec_of(path, lines)
    spec["nodes"]["n"] = {"files": ["nodes.csv"]}
    import_tables(spec, path / "out", folder=path)
    return ids_of(path / "out")


def by_append(path: Path, lines: Sequence[str]) -> set[str]:
    import_tables(spec_of(path, ["zz,zz"]), path / "out", folder=path)
    khop.append(path / "out", spec_of(path, lines), folder=path)
    return ids_of(khop.open_folder(path / "out").path) - {"zz"}


def by_later_tables(path: Path, lines: Sequence[str]) -> set[str]:
    import_tables(spec_of(path, ["zz,zz"]), path / "graph", folder=path)
    import_tables(spec_of(path, lines), path / "out", folder=path, encoders=path / "graph")
    return ids_of(path / "out")


ENTRANCES = [by_edge_list, by_spec, by_triples, by_node_table, by_append, by_later_tables]


@pytest.mark.core(1)
@pytest.mark.parametrize("entrance", ENTRANCES)
def test_ids_are_the_same_at_each_entrance(tmp_path: Path, entrance: Any) -> None:  # noqa: ANN401
    for row, (lines, ids) in enumerate(TABLE):
        (tmp_path / str(row)).mkdir()
        assert entrance(tmp_path / str(row), lines) == set(ids)


def test_pairs_to_score_name_the_same_ids(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    lines = [line for of_row, _ in TABLE for line in of_row]
    split = {"ratio": [0.5, 0.25, 0.25]}
    import_tables(spec_of(tmp_path, lines, split=split), tmp_path / "graph", folder=tmp_path)
    sizes = ["--epochs", "1", "--batch-size", "4", "--hidden", "4", "--fanouts", "2", "--embedding", "4"]
    task = ["--task", "link-prediction", "--target", "n to n", "--out", "run", "--compute-threads", "1"]
    (tmp_path / "pairs.csv").write_text("0,1\n" + "\n".join(lines) + "\n")
    for words in (
        ["train", "--graph", "graph", *task, *sizes],
        ["predict", "run", "--pairs", "pairs.csv", "--out", "p.parquet"],
    ):
        with pytest.raises(SystemExit) as left:
            run(words)
        assert not left.value.code
    found = pq.read_table("p.parquet")
    written = {one for name in ("source_id", "destination_id") for one in found[name].to_pylist()}
    assert found.num_rows == len(lines)
    assert written == {one for _, ids in TABLE for one in ids}
