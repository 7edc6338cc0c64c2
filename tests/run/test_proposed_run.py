"""Run files proposed for graphs: each trains as it is written."""

from __future__ import annotations

import tomllib
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from typer.testing import CliRunner

import khop
from api.test_time_split import many
from data.tables.shop import spec
from khop.cli.main import app
from khop.data.tables.pipeline import import_tables
from khop.graph.features.store import Rows
from khop.graph.folder import open_folder
from khop.models.layer import parameter_name
from khop.run.build import prepare
from khop.run.proposed_run import proposed_run
from khop.run.read import read_toml, with_options
from khop.training.step_clock import Unwatched
from support.small_link_folders import write_diary, write_shop


def trains(graph: Path, folder: Path) -> dict[str, object]:
    """Write the proposed file, train one epoch as it says, and return its values."""
    written = CliRunner().invoke(app, ["init", str(graph)])
    assert written.exit_code == 0, written.output
    (folder / "run.toml").write_text(written.stdout)
    run = ["train", str(folder / "run.toml"), "--epochs", "1", "--out", str(folder / "run")]
    done = CliRunner().invoke(app, run)
    assert done.exit_code == 0, done.output
    return tomllib.loads(written.stdout)


@pytest.mark.long
def test_a_label_with_splits_is_the_task(tmp_path: Path) -> None:
    values = trains(write_diary(tmp_path / "diary"), tmp_path)
    assert values["task"] == {"kind": "node-classification", "target": "user", "label": "kind"}


@pytest.mark.long
@pytest.mark.parametrize(
    ("label", "kind"),
    [
        ({"column": "price", "kind": "number", "unit": "EUR"}, "node-regression"),
        ({"column": "tags", "kind": "multi", "separator": " "}, "multi-label"),
    ],
)
def test_labels_of_an_import_are_of_the_kind_that_it_records(
    tmp_path: Path, label: dict[str, str], kind: str
) -> None:
    split = {"ratio": [0.4, 0.3, 0.3], "seed": 2}
    changes = many()
    tags = [["warm wool", "wool", "", "warm", None][n % 5] for n in range(30)]
    items = changes["nodes.item.rows"].append_column("tags", pa.array(tags))
    changes |= {"nodes.item.rows": items, "nodes.item.label": label, "nodes.item.split": split}
    khop.import_tables(spec(**changes), tmp_path / "shop")
    values = trains(tmp_path / "shop", tmp_path)
    assert values["task"] == {"kind": kind, "target": "item", "label": "label"}
    out = tmp_path / "p.parquet"
    done = CliRunner().invoke(app, ["evaluate", str(tmp_path / "run"), "--predictions", str(out)])
    assert done.exit_code == 0, done.output
    rows = pq.read_table(out).to_pylist()
    if kind == "node-regression":
        assert {row["unit"] for row in rows} == {"EUR"}
        assert all(isinstance(row["prediction"], float) for row in rows)
    else:
        assert all(isinstance(word, str) for row in rows for word in row["prediction"] + row["label"])


@pytest.mark.long
def test_links_are_split_at_random_without_times(tmp_path: Path) -> None:
    values = trains(write_shop(tmp_path / "shop"), tmp_path)
    assert values["task"] == {"kind": "link-prediction", "target": "user buys item"}
    assert values["links"]["split"] == "random"  # type: ignore[index]
    assert values["model"]["embedding"] == 32  # type: ignore[index]


@pytest.mark.long
def test_links_of_an_import_follow_its_cut_offs(tmp_path: Path) -> None:
    khop.import_tables(spec(**many()), tmp_path / "shop")
    text = proposed_run(tmp_path / "shop")
    assert "# Split by time: validation begins at 2020-09-20 UTC, test at" in text
    values = trains(tmp_path / "shop", tmp_path)
    assert values["links"]["split"] == "time"  # type: ignore[index]


def test_a_graph_without_labels_and_links_has_no_run(tmp_path: Path) -> None:
    khop.write_graph(tmp_path / "g", {"user": khop.NodeTable(columns={"x": torch.ones(3, 1)})}, {})
    with pytest.raises(
        ValueError, match="no node type has a label with the splits train, val and test, and no edge"
    ):
        proposed_run(tmp_path / "g")


@pytest.fixture
def bank(tmp_path: Path) -> dict[str, Any]:
    """Accounts, some reviewed on a day, and payments between them: tables for a spec."""
    count, events = 200, 900
    day = datetime(2024, 1, 1, tzinfo=UTC)
    accounts = {
        "id": [f"a{n}" for n in range(count)],
        "fraud": [None if n % 4 == 3 else str(n % 20 == 0) for n in range(count)],
        "reviewed": [None if n % 4 == 3 else day + timedelta(days=n) for n in range(count)],
    }
    payments = {
        "tx": list(range(events)),
        "from": [f"a{n * 7 % count}" for n in range(events)],
        "to": [f"a{n * 11 % count}" for n in range(events)],
        "amount": [float(n % 13) for n in range(events)],
        "at": [day + timedelta(days=n % 200) for n in range(events)],
    }
    pay = {"rows": pa.table(payments), "time": "at"}
    amount = {"amount": {"kind": "number"}}
    node = {"rows": pa.table(accounts), "id": "id", "time": "reviewed", "label": "fraud"}
    ends = {"source": "from", "destination": "to", "columns": amount}
    types = [
        {"type": "account sends payment", "source": "from", "destination": "tx", "reverse": "sent-by"},
        {"type": "payment reaches account", "source": "tx", "destination": "to", "reverse": "received"},
    ]
    return {
        "splits": {"time": {"val": day + timedelta(days=120), "test": day + timedelta(days=160)}},
        "edges": {"nodes": {"account": node}, "edges": {"account pays account": {**pay, **ends}}},
        "events": {
            "nodes": {"account": node, "payment": {**pay, "id": "tx", "columns": amount}},
            "edges_from": [{**pay, "edges": types}],
        },
    }


def test_edges_with_numbers_at_labeled_nodes_are_proposed_as_nodes(
    tmp_path: Path, bank: dict[str, Any]
) -> None:
    """The proposal names the columns and a section that exists; a graph without such edges has none."""
    page = Path(__file__).parents[2] / "docs/import-later.md"
    proposed = "# Import each of these rows as a node, with the numbers as its columns"
    import_tables({"splits": bank["splits"], **bank["edges"]}, tmp_path / "edges")
    text = proposed_run(tmp_path / "edges")
    assert "# Edges at account have numbers that sage does not read: amount of account pays account." in text
    assert proposed in text
    assert 'docs/import-later.md, "Events as nodes"' in text
    assert "## Events as nodes\n" in page.read_text()
    import_tables({"splits": bank["splits"], **bank["events"]}, tmp_path / "events")
    assert proposed not in proposed_run(tmp_path / "events")  # the payments are nodes
    del bank["edges"]["edges"]["account pays account"]["columns"]
    import_tables({"splits": bank["splits"], **bank["edges"]}, tmp_path / "times")
    assert proposed not in proposed_run(tmp_path / "times")  # a time is no number
    write_shop(tmp_path / "shop")
    assert proposed not in proposed_run(tmp_path / "shop")  # no labels


@pytest.mark.core(1)
@pytest.mark.parametrize("form", ["edges", "events"])
def test_labels_at_a_date_are_trained_by_time_as_proposed(
    tmp_path: Path, bank: dict[str, Any], form: str
) -> None:
    import_tables({"splits": bank["splits"], **bank[form]}, tmp_path / "bank")
    graph = khop.open_graph(tmp_path / "bank")
    assert graph.split("train")["account"].numel() == 90  # reviewed before validation
    times = graph.features.gather({"account": Rows(torch.arange(4), ("time",))})["account"]["time"]
    assert times[3] == torch.iinfo(torch.int64).min  # not reviewed
    text = proposed_run(tmp_path / "bank")
    assert 'metric = "average-precision"' in text
    assert 'time = "time"' in text
    assert ("amount of account pays account" in text) is (form == "edges")
    assert ("embedding = 0" in text) is (form == "events")
    (tmp_path / "run.toml").write_text(text)
    run = prepare(with_options(read_toml(tmp_path / "run.toml"), {"training.epochs": 1}), tmp_path)
    run.trainer(tmp_path / "out", Unwatched()).fit()


DATED = {"time": None, "label": {"column": "fraud", "time": "reviewed"}}
PAYS = ("account", "pays", "account")


@pytest.mark.long
def test_a_date_of_the_label_bounds_the_seed_and_not_the_node(tmp_path: Path, bank: dict[str, Any]) -> None:
    """An account is a neighbor before its review, and sees the payments before its own."""
    account = {name: of for name, of in (bank["edges"]["nodes"]["account"] | DATED).items() if of is not None}
    spec = {"splits": bank["splits"], **bank["edges"], "nodes": {"account": account}}
    import_tables(spec, tmp_path / "bank")
    graph = khop.open_graph(tmp_path / "bank")
    assert sorted(graph.schema.columns["account"]) == ["label", "label_time"]
    assert graph.split("train")["account"].numel() == 90  # reviewed before validation
    dates = open_folder(tmp_path / "bank").columns()["account"]["label_time"]
    first: dict[tuple[int, int], int] = {}  # by payer and payee: the time of the first payment
    for row in bank["edges"]["edges"]["account pays account"]["rows"].to_pylist():
        at = int(row["at"].timestamp()) * 10**6
        pair = int(row["from"][1:]), int(row["to"][1:])
        first[pair] = min(at, first.get(pair, at))
    assert dates[3] == torch.iinfo(torch.int64).min  # not reviewed
    text = proposed_run(tmp_path / "bank")
    assert 'time = "time"' in text
    (tmp_path / "run.toml").write_text(text)
    run = prepare(with_options(read_toml(tmp_path / "run.toml"), {"training.epochs": 1}), tmp_path)
    later = 0
    for batch in run.loader().epoch(0):
        nodes = batch.sample.nodes["account"]
        edges = batch.blocks[-1].adjacencies[PAYS]
        sources, seeds = (nodes[rows] for rows in edges.edge_index)
        for pair in zip(sources.tolist(), seeds.tolist(), strict=True):
            assert first[pair] <= dates[pair[1]]
        later += int((dates[sources] > dates[seeds]).sum())
    assert later > 0  # neighbors that are reviewed after the seed
    run.trainer(tmp_path / "out", Unwatched()).fit()
    again = {"splits": bank["splits"], **bank["edges"]}
    import_tables(again, tmp_path / "nodes")
    assert graph.split("test")["account"].equal(khop.open_graph(tmp_path / "nodes").split("test")["account"])


def test_dates_of_labels_are_kept_by_an_append(tmp_path: Path, bank: dict[str, Any]) -> None:
    account = {name: of for name, of in (bank["edges"]["nodes"]["account"] | DATED).items() if of is not None}
    spec = {"splits": bank["splits"], **bank["edges"], "nodes": {"account": account}}
    import_tables(spec, tmp_path / "bank")
    rows, day = account["rows"], datetime(2024, 9, 1, tzinfo=UTC)
    reviewed = pa.array([day, None], rows.schema.field("reviewed").type)
    new = {"id": ["b0", "b1"], "fraud": ["True", None], "reviewed": reviewed}
    khop.append(tmp_path / "bank", {"nodes": {"account": {**account, "rows": pa.table(new)}}})
    dates = open_folder(tmp_path / "bank").columns()["account"]["label_time"]
    assert dates.numel() == 202
    assert dates[200:].tolist() == [int(day.timestamp()) * 10**6, torch.iinfo(torch.int64).min]
    unlabeled = {"rows": pa.table({"id": ["b2"]}), "id": "id"}
    khop.append(tmp_path / "bank", {"nodes": {"account": unlabeled}})
    assert (
        open_folder(tmp_path / "bank").columns()["account"]["label_time"][202] == torch.iinfo(torch.int64).min
    )


def test_a_label_needs_a_date_if_the_split_is_by_time(tmp_path: Path, bank: dict[str, Any]) -> None:
    account = bank["edges"]["nodes"]["account"]
    undated = {name: of for name, of in account.items() if name != "time"}
    spec = {"splits": bank["splits"], **bank["edges"]}
    with pytest.raises(ValueError, match=r"its labels have no times.* label\.time = \.\.\. if"):
        import_tables({**spec, "nodes": {"account": undated}}, tmp_path / "bank")
    dates = pa.array([None] * 200, account["rows"].schema.field("reviewed").type)
    rows = account["rows"].set_column(2, "reviewed", dates)
    dated = {**undated, "rows": rows, "label": DATED["label"]}
    with pytest.raises(ValueError, match=r"row 1: nodes.account.label.time is null"):
        import_tables({**spec, "nodes": {"account": dated}}, tmp_path / "bank")


def test_the_target_has_no_embedding_beside_other_types_without_columns(
    tmp_path: Path, bank: dict[str, Any]
) -> None:
    spec = {"splits": bank["splits"], **bank["events"]}
    spec["nodes"]["bank"] = {}
    types = spec["edges_from"][0]["edges"]
    types.append({"type": "payment at bank", "source": "tx", "destination": "to", "reverse": "takes"})
    import_tables(spec, tmp_path / "bank")
    text = proposed_run(tmp_path / "bank")
    assert 'embedded_types = "others"' in text
    (tmp_path / "run.toml").write_text(text)
    run = prepare(read_toml(tmp_path / "run.toml"), tmp_path)
    assert list(run.model.encoder.tables) == [parameter_name("bank")]
