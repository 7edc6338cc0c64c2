"""Runs on tables of dated labels: trained, scored and predicted per row, by the users' ids."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
import torch

import khop
from data.tables.shop import at
from khop.graph import layout
from khop.graph.partitions.parts_folder import known_folder
from khop.run.build import prepare
from khop.run.predict import predict_rows
from khop.run.read import RawRun
from khop.run.seed_tables import node_lookup
from khop.training.step_clock import Unwatched
from support.commands import exit_code
from support.covered import covered
from support.killed_runs import killed_and_continued
from support.later_shops import shop_spec, shop_tables
from support.started_ranks import StartedRanks
from training.test_evaluations import assert_equal_runs

SETTINGS = """
    graph = "shop"
    out = "run"
    precision = "float64"
    compute_threads = 1
    task = {{ kind = "{kind}", target = "user", label = "{label}" }}
    seeds = {{ train = "train.parquet", val = "val.parquet", test = "test.parquet", time = "day", {more} }}
    sampler = {{ fanouts = [4, 3], time = "time" }}
    model = {{ hidden = 8 }}
    training = {{ epochs = 2, batch_size = 16, seed = 3 }}
"""


def label_table(rows: int, seed: int, first: int = 5, last: int = 28) -> pa.Table:
    """Rows of users at dates, with a class of text, a number, a list of words and a weight."""
    random = np.random.default_rng(seed)
    users, days = random.integers(30, size=rows), np.sort(random.integers(first, last, rows))
    return pa.table(
        {
            "user_id": [f"u{user}" for user in users],
            "day": pa.array([at(1).replace(tzinfo=None) + timedelta(days=int(day) - 1) for day in days]),
            "churn": [("stays", "goes")[int(user + day) % 2] for user, day in zip(users, days, strict=True)],
            "spent": random.normal(size=rows) + users,
            "tags": [["a", "b"][: int(user) % 3] for user in users],
            "trust": random.uniform(0, 2, rows),
        }
    )


def write_tables(folder: Path) -> None:
    khop.import_tables(shop_spec(shop_tables()), folder / "shop")
    for name, (rows, first, last) in {
        "train": (90, 5, 20),
        "val": (30, 20, 24),
        "test": (25, 24, 28),
    }.items():
        pq.write_table(label_table(rows, rows, first, last), folder / f"{name}.parquet")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("tables")
    write_tables(found)
    return found


@pytest.fixture
def trained(folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A run of the command on classes, with weights."""
    monkeypatch.chdir(folder)
    out = tmp_path / "run"
    (tmp_path / "run.toml").write_text(
        SETTINGS.format(kind="node-classification", label="churn", more='weight = "trust"')
    )
    assert exit_code("train", str(tmp_path / "run.toml"), "--out", str(out)) == 0
    return out


@pytest.mark.long
def test_the_command_trains_scores_and_predicts_rows(
    trained: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert exit_code("evaluate", str(trained), "--predictions", str(tmp_path / "test.parquet"), "--json") == 0
    outcome = json.loads(capfd.readouterr().out.splitlines()[-1])
    given, rows = pq.read_table("test.parquet"), pq.read_table(tmp_path / "test.parquet")
    assert rows["id"].to_pylist() == given["user_id"].to_pylist()
    assert rows["time"].to_pylist() == dates(given)
    assert rows["label"].to_pylist() == given["churn"].to_pylist()
    right = [
        one == other
        for one, other in zip(*(rows[n].to_pylist() for n in ("label", "prediction")), strict=True)
    ]
    assert outcome["test_accuracy"] == pytest.approx(sum(right) / len(right))

    pq.write_table(given.select(["user_id", "day"]), tmp_path / "new.parquet")
    assert (
        exit_code(
            "predict",
            str(trained),
            "--rows",
            str(tmp_path / "new.parquet"),
            "--out",
            str(tmp_path / "p.parquet"),
        )
        == 0
    )
    predicted = pq.read_table(tmp_path / "p.parquet")
    assert predicted.column_names == ["id", "node", "time", "prediction", "score", "scores"]
    assert predicted.equals(rows.select(predicted.column_names))
    assert khop.load_run(trained).predict(rows=given.select(["user_id", "day"])).table.equals(predicted)
    labeled = khop.load_run(trained).predict(rows=given).table
    assert labeled["label"].to_pylist() == given["churn"].to_pylist()


def dates(table: pa.Table) -> list[Any]:
    return [day.replace(tzinfo=at(1).tzinfo) for day in table["day"].to_pylist()]


@pytest.mark.long
def test_outputs_are_those_of_each_user_at_the_date_of_its_row(trained: Path) -> None:
    """The rows' neighbors are drawn within their dates, as by a sampler over the library's seed table."""
    loaded = khop.load_run(trained)
    config, graph = loaded.run.config, loaded.run.graph
    assert config.seeds.classes == ("goes", "stays")
    assert config.seeds.id == "user_id"
    given = pq.read_table("val.parquet")
    nodes = torch.from_numpy(khop.open_ids(Path("shop"), "user").rows(given["user_id"].to_pylist()))
    sampler = khop.NeighborSampler(graph, [4, 3], rule=khop.Temporal("time"))
    context = loaded.run.run_task.context  # type: ignore[attr-defined]
    outputs = khop.sampled_inference(
        loaded.run.model, sampler, graph.features, "user", nodes=nodes,
        times=torch.tensor([int(day.timestamp()) * 10**6 for day in dates(given)]),
        columns=context.columns(loaded.run.model), seed=config.training.seed,
    )  # fmt: skip
    found = loaded.predict(rows=given.select(["user_id", "day"])).table
    scores = torch.tensor(found["scores"].to_pylist())
    assert torch.allclose(scores, outputs.float().softmax(1), rtol=0, atol=1e-6)
    earlier = given.set_column(1, "day", pa.array([at(1).replace(tzinfo=None)] * len(given)))
    assert loaded.predict(rows=earlier).table["scores"] != found["scores"]


def values(folder: Path, **tables: dict[str, Any]) -> dict[str, Any]:
    paths = {split: str(folder / f"{split}.parquet") for split in ("train", "val", "test")}
    found: dict[str, Any] = {
        "graph": str(folder / "shop"),
        "precision": "float64",
        "task": {"target": "user", "label": "churn"},
        "seeds": {**paths, "time": "day", "weight": "trust"},
        "sampler": {"fanouts": [4, 3]},
        "model": {"hidden": 8, "dropout": 0.0},
        "training": {"epochs": 2, "batch_size": 32, "learning_rate": 0.02},
        "compute_threads": 1,
    }
    return {**found, **{name: found.get(name, {}) | table for name, table in tables.items()}}


LINKS = {"kind": "link-prediction", "target": "user buys item", "label": None}
KINDS: dict[str, dict[str, dict[str, Any]]] = {
    "classes": {"task": {"class_weights": "balanced"}},
    "numbers": {"task": {"kind": "node-regression", "label": "spent", "metric": "mae"}},
    "sets": {"task": {"kind": "multi-label", "label": "tags"}},
    "along paths": {"sampler": {"time": "time", "temporal_limit": "edge", "window": [(1 << 63) - 1, -1]}},
    "without dates": {
        "seeds": {"time": None, "weight": None},
        "task": {"kind": "node-regression", "label": "spent"},
    },
}


@covered
def train_runs(rank: int, device: torch.device, folder: str, graph: str, out: str) -> None:
    """Train a run of every kind of labels on tables; the trainer writes losses and scores."""
    torch.set_num_threads(1)
    for kind, tables in KINDS.items():
        raw = RawRun(
            {**values(Path(folder), **tables), "graph": graph, "parts": {"placement": "all"}}, "run.toml"
        )
        prepare(raw, Path(out)).trainer(Path(out, kind), Unwatched()).fit()


@pytest.mark.long
@pytest.mark.parametrize("procs", [2, pytest.param(4, marks=pytest.mark.long)])
def test_losses_and_scores_are_the_same_on_one_process_and_on_ranks_of_a_partitioned_graph(
    procs: int, tmp_path: Path, ranks: StartedRanks
) -> None:
    write_tables(tmp_path)
    khop.partition_graph(tmp_path / "shop", tmp_path / "parts", 3, method="hash", seed=1)
    for name, count, graph in (("one", 1, "shop"), ("whole", procs, "shop"), ("parts", procs, "parts")):
        ranks.launch(train_runs, count, (str(tmp_path), str(tmp_path / graph), str(tmp_path / name)))
    for kind in KINDS:
        expected = numbers(tmp_path / "one" / kind)
        assert expected[0]["loss"] != expected[-1]["loss"]
        for name in ("whole", "parts"):
            for one, other in zip(numbers(tmp_path / name / kind), expected, strict=True):
                assert one == pytest.approx(other, rel=1e-9), (kind, name)


@pytest.mark.long
@pytest.mark.parametrize("kind", ["classes", "along paths"])
def test_a_killed_run_on_tables_continues_with_equal_bits(kind: str, folder: Path, tmp_path: Path) -> None:
    often = {"checkpoint": {"steps": 1}, "evaluation": {"every_steps": 3}}
    assert_equal_runs(*killed_and_continued(values(folder, **KINDS[kind], **often), tmp_path))


def numbers(out: Path) -> list[dict[str, float]]:
    lines = (out / "metrics.jsonl").read_text().splitlines()
    return [{n: v for n, v in json.loads(line).items() if isinstance(v, float)} for line in lines]


@pytest.mark.core(1)
@pytest.mark.parametrize("as_numbers", [False, True])
def test_files_of_text_are_read_as_those_with_types(folder: Path, tmp_path: Path, as_numbers: bool) -> None:
    """CSV with times in text, as dates or as numbers in the unit of the graph: the same rows and batches."""
    paths = {}
    for split in ("train", "val"):
        table = pq.read_table(folder / f"{split}.parquet").drop_columns(["tags"])
        if as_numbers:
            table = table.set_column(1, "day", table["day"].cast(pa.timestamp("us")).cast(pa.int64()))
        paths[split] = str(tmp_path / f"{split}.csv")
        pyarrow.csv.write_csv(table, paths[split])
    runs = [
        prepare(RawRun(values(folder, seeds=seeds), "run.toml"), tmp_path)
        for seeds in ({"test": None}, {**paths, "test": None})
    ]
    batches = [list(one.loader().epoch(0)) for one in runs]
    for one, other in zip(*batches, strict=True):
        assert torch.equal(one.seeds, other.seeds)
        assert torch.equal(one.seed_times, other.seed_times)
        assert torch.equal(one.seed_column("label"), other.seed_column("label"))
        assert torch.allclose(one.seed_weights, other.seed_weights, rtol=1e-12)
    assert runs[0].run_task.splits == ("train", "val")


def test_times_in_text_are_whole_numbers_where_the_graph_has_no_unit(tmp_path: Path) -> None:
    links = khop.EdgeTable(torch.arange(9), torch.arange(1, 10) % 9, {"time": torch.arange(9)})
    nodes = khop.NodeTable(columns={"x": torch.eye(9)})
    khop.write_graph(tmp_path / "ring", {"node": nodes}, {("node", "to", "node"): links}, sort_by="time")
    path = tmp_path / "rows.csv"
    path.write_text("id,at,label\n3,5,a\n4,-2,b\n")
    found = {
        "graph": str(tmp_path / "ring"),
        "seeds": {"train": str(path), "val": str(path), "time": "at"},
        "sampler": {"fanouts": [2]},
    }
    made = prepare(RawRun(found, "run.toml"), tmp_path)
    batch = made.loader().batch(0, 0)
    order = batch.seeds.argsort()
    assert batch.seeds[order].tolist() == [3, 4]
    assert batch.seed_times[order].tolist() == [5, -2]
    path.write_text("id,at,label\n3,yesterday,a\n")
    with pytest.raises(ValueError, match="the graph records no unit of its times; give whole"):
        prepare(RawRun(found, "run.toml"), tmp_path).loader()


@pytest.mark.parametrize("day", ["20240101", "2024"])
def test_dates_as_digits_in_text_are_not_seconds_since_1970(folder: Path, tmp_path: Path, day: str) -> None:
    path = tmp_path / "rows.csv"
    path.write_text(f"user_id,day,churn,trust\nu1,{day},stays,1\nu2,{day},goes,1\n")
    found = values(folder, seeds={"train": str(path), "test": None})
    with pytest.raises(ValueError, match=f"row 1: seeds.time 'day' is '{day}': not a time in us from 1973"):
        prepare(RawRun(without_none(found), "run.toml"), folder).loader()


@pytest.mark.core(1)
@pytest.mark.parametrize("column", ["time", "created"])
def test_rows_after_the_cut_offs_of_the_graph_have_all_edges_up_to_their_dates(
    folder: Path, tmp_path: Path, column: str
) -> None:
    """The date of a row limits its edges: a graph without cut-offs gives the same batches."""
    tables = shop_tables()
    created = tables["event"]["ts"].cast(pa.timestamp("us", "UTC")).cast(pa.int64())
    spec = shop_spec({**tables, "event": tables["event"].append_column("created", created)})
    spec["edges"]["user buys item"]["columns"] = {"created": "raw"}
    khop.import_tables(spec, tmp_path / "split")
    khop.import_tables({name: of for name, of in spec.items() if name != "splits"}, tmp_path / "unsplit")
    late = str(tmp_path / "late.parquet")
    pq.write_table(label_table(60, 7, 20, 28), late)  # training ends on the 20th in the graph
    found = []
    for graph in (tmp_path / "split", tmp_path / "unsplit"):
        sampler = {"fanouts": [4, 3], "time": column}
        given = {**values(folder, seeds={"train": late}, sampler=sampler), "graph": str(graph)}
        batch = prepare(RawRun(given, "run.toml"), folder).loader().batch(0, 0)
        found.append([batch.seed_times.tolist(), {t: ids.tolist() for t, ids in batch.sample.nodes.items()}])
    assert found[0] == found[1]


def test_a_resumed_run_has_the_same_rows_of_all_tables(folder: Path, tmp_path: Path) -> None:
    """Files may move but not change, also those that are only scored."""
    found = values(folder, training={"epochs": 1}, seeds={"test": None})
    found = without_none(found)
    prepare(RawRun(found, "run.toml"), folder).trainer(tmp_path / "out", Unwatched()).fit()
    old = pq.read_table(folder / "val.parquet")
    moved = changed(folder, tmp_path, "val", churn=old["churn"])
    again = {**found, "seeds": {**found["seeds"], "val": moved}}
    prepare(RawRun(again, "run.toml"), folder).trainer(tmp_path / "out", Unwatched()).resume()
    flipped = [{"stays": "goes", "goes": "stays"}[name] for name in old["churn"].to_pylist()]
    changed(folder, tmp_path, "val", churn=pa.array(flipped))
    with pytest.raises(ValueError, match=r"content of seeds\.val was \w+ and is \w+.*put back the file"):
        prepare(RawRun(again, "run.toml"), folder).trainer(tmp_path / "out", Unwatched()).resume()
    prepare(RawRun(again, "run.toml"), folder).restore(tmp_path / "out/checkpoints/best", print, ())


def test_rows_to_predict_may_have_labels_that_training_lacks(folder: Path) -> None:
    made = prepare(RawRun(values(folder), "run.toml"), folder)
    rows = pq.read_table(folder / "val.parquet").slice(0, 3)
    rows = rows.set_column(rows.column_names.index("churn"), "churn", pa.array(["pending", "stays", None]))
    (piece,) = predict_rows(made, rows).pieces()
    assert piece["label"].to_pylist() == [None, "stays", None]
    assert len(piece["prediction"]) == 3


def test_ids_in_files_of_another_machine_are_not_taken_for_node_numbers(tmp_path: Path) -> None:
    knows = {"user knows user": khop.EdgeTable(torch.tensor([0, 1]), torch.tensor([1, 2]))}
    khop.write_graph(tmp_path / "graph", {"user": khop.NodeTable(ids=[2, 0, 1])}, knows)
    parts = tmp_path / "parts"
    khop.partition_graph(tmp_path / "graph", parts, 2, method="range")
    lookup = node_lookup(known_folder(parts), "user", "id")
    assert lookup(pa.array([0, 1, 2]), str).tolist() == [1, 2, 0]
    (parts / layout.node_ids("user", "keys")).unlink()
    with pytest.raises(ValueError, match="is not on this machine; copy it here"):
        node_lookup(known_folder(parts), "user", "id")


def changed(folder: Path, tmp_path: Path, split: str, **columns: pa.Array) -> str:
    table = pq.read_table(folder / f"{split}.parquet")
    for name, column in columns.items():
        table = table.set_column(table.column_names.index(name), name, column)
    pq.write_table(table, tmp_path / "changed.parquet")
    return str(tmp_path / "changed.parquet")


@pytest.mark.parametrize(
    ("tables", "words"),
    [
        ({"seeds": {"val": None}}, r"seeds\.val is missing: there are tables of train, test"),
        ({"seeds": {"train": None, "val": None, "test": None}}, r"seeds\.train is missing: other settings"),
        ({"seeds": {"train": "nowhere.parquet"}}, r"seeds\.train.*nowhere\.parquet"),
        ({"seeds": {"time": "when"}}, r"seeds\.train, seeds\.time: no column 'when' in"),
        ({"task": {"label": "zz"}}, r"seeds\.train, task\.label: no column 'zz' in"),
        ({"seeds": {"time": None}, "sampler": {"time": "time"}}, "give both, or none"),
        ({"task": LINKS}, "seed tables have node labels, and the task is link-prediction"),
        ({"task": {"target": "zz"}}, r"task\.target is 'zz'"),
    ],
)  # fmt: skip
def test_settings_that_do_not_fit_are_named(folder: Path, tables: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        prepare(RawRun(without_none(values(folder, **tables)), "run.toml"), folder)


def without_none(found: dict[str, Any]) -> dict[str, Any]:
    return {
        name: without_none(of) if isinstance(of, dict) else of for name, of in found.items() if of is not None
    }


@pytest.mark.parametrize(
    ("split", "column", "value", "words"),
    [
        ("train", "user_id", "who", r"row 1: seeds\.id 'user_id' is 'who', and no node has this id; 1 of 90"),
        ("val", "churn", "unheard", r"row 1: label 'churn' is 'unheard', which is not among the classes"),
        ("train", "churn", None, r"row 1: label 'churn' is null"),
        ("train", "day", None, r"row 1: seeds\.time 'day' is null"),
        ("train", "trust", None, r"row 1: seeds\.weight 'trust' is null"),
        ("train", "trust", -1.0, "weights of 'user': row 0 has -1.0"),
    ],
)  # fmt: skip
def test_bad_rows_are_named(
    folder: Path, tmp_path: Path, split: str, column: str, value: object, words: str
) -> None:
    old = pq.read_table(folder / f"{split}.parquet")[column]
    path = changed(folder, tmp_path, split, **{column: pa.array([value, *old.to_pylist()[1:]], old.type)})

    def scored() -> None:
        made = prepare(RawRun(values(folder, seeds={split: path}), "run.toml"), folder)
        made.scores((split,), lambda done, total: None)

    with pytest.raises(ValueError, match=words):
        scored()


@pytest.mark.parametrize("split", ["train", "val", "test"])
def test_a_table_without_rows_is_named_before_training(folder: Path, tmp_path: Path, split: str) -> None:
    path = tmp_path / "empty.parquet"
    pq.write_table(pq.read_table(folder / f"{split}.parquet").slice(0, 0), path)
    with pytest.raises(ValueError, match=rf"seeds\.{split} is '.*empty\.parquet': the table has no rows"):
        prepare(RawRun(values(folder, seeds={split: str(path)}), "run.toml"), folder).trainer(
            tmp_path / "out", Unwatched()
        )


@pytest.mark.long
def test_what_a_run_on_tables_cannot_predict_is_named(trained: Path, folder: Path) -> None:
    loaded = khop.load_run(trained)
    with pytest.raises(ValueError, match="rows refer to nodes of the graph; give rows alone"):
        loaded.predict("later", rows="val.parquet")
    with pytest.raises(ValueError, match="the run predicts rows of tables"):
        loaded.predict("shop")
    with pytest.raises(ValueError, match="no column 'day'"):
        loaded.predict(rows=pq.read_table("val.parquet").drop_columns(["day"]))
