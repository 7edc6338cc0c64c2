"""Tasks of a RelBench database: imported, trained and scored by the command."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import khop
from khop.inference.link_evaluation import node_rows
from khop.run.build import prepare
from khop.run.read import read_toml
from support.commands import exit_code

DRIVERS, RACES, CIRCUITS = 24, 120, 30
FIRST = datetime(2003, 1, 1)
COUNTS = (("drivers", DRIVERS), ("circuits", CIRCUITS))
LIMITS = {"val": "2008-09-30", "test": "2010-05-23"}  # the day before race 70, and before race 90


def stored(
    path: Path, rows: pa.Table, links: dict[str, str], time: str | None, key: str | None = None
) -> None:
    """Write a table as RelBench's package does: keys are in the metadata of the Parquet file."""
    record = {"fkey_col_to_pkey_table": links, "pkey_col": key, "time_col": time}
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(rows.replace_schema_metadata({n: json.dumps(v) for n, v in record.items()}), path)


def days(numbers: npt.NDArray[np.int64]) -> pa.Array:
    return pa.array([FIRST + timedelta(days=int(day)) for day in numbers], pa.timestamp("ns"))


def write_database(root: Path) -> None:
    """Drivers, races, and results of both: a slow driver seldom finishes. Labels are of the next day."""
    random = np.random.default_rng(5)
    speed = random.normal(size=DRIVERS)
    drivers, races = np.arange(DRIVERS), np.arange(RACES) * 30
    who, race = random.integers(DRIVERS, size=3000), np.sort(random.integers(RACES, size=3000))
    place = np.clip(10 - 4 * speed[who] + random.normal(size=3000), 1, None)
    stored(
        root / "db/drivers.parquet",
        pa.table({"driverId": drivers, "age": random.normal(30, 5, DRIVERS)}),
        {},
        None,
        "driverId",
    )
    stored(
        root / "db/races.parquet",
        pa.table({"raceId": np.arange(RACES), "circuitId": np.arange(RACES) % CIRCUITS, "date": days(races)}),
        {"circuitId": "circuits"},
        "date",
        "raceId",
    )
    circuits = pa.table({"circuitId": np.arange(CIRCUITS), "length": random.normal(size=CIRCUITS)})
    stored(root / "db/circuits.parquet", circuits, {}, None, "circuitId")
    results = pa.table({"driverId": who, "raceId": race, "place": place, "date": days(races[race])})
    stored(root / "db/results.parquet", results, {"driverId": "drivers", "raceId": "races"}, "date")
    for name, column, values in (
        ("driver-dnf", "did_not_finish", (place > 12).astype(np.int64)),
        ("driver-position", "position", place),
    ):
        for split, first, last in (("train", 10, 70), ("val", 70, 90), ("test", 90, RACES)):
            kept = (race >= first) & (race < last)
            rows = {"date": days(races[race[kept]] - 1), "driverId": who[kept], column: values[kept]}
            stored(root / f"tasks/{name}/{split}.parquet", pa.table(rows), {"driverId": "drivers"}, "date")

    write_links(root, who, race)


def write_links(root: Path, who: npt.NDArray[np.int64], race: npt.NDArray[np.int64]) -> None:
    """Write a recommendation task: some circuits of the next ten races in which a driver has results."""
    for split, dates in (("train", range(10, 70, 10)), ("val", [70]), ("test", [90])):
        rows: list[tuple[datetime, int, list[int]]] = []
        for first in dates:
            near = (race >= first) & (race < first + 10) & ((who + race) % 3 == 0)
            for driver in np.unique(who[near]).tolist():
                found = np.unique(race[near & (who == driver)] % CIRCUITS)
                rows.append((FIRST + timedelta(days=first * 30 - 1), driver, found.tolist()))
        columns = dict(zip(("date", "driverId", "circuitId"), zip(*rows, strict=True), strict=True))
        table = pa.table({"date": pa.array(columns.pop("date"), pa.timestamp("ns")), **columns})
        links = {"driverId": "drivers", "circuitId": "circuits"}
        stored(root / f"tasks/driver-circuits/{split}.parquet", table, links, "date")


def area(labels: npt.NDArray[np.int64], scores: npt.NDArray[np.float64]) -> float:
    """roc_auc_score of scikit-learn, which RelBench calls: pairs in order, equal scores by half."""
    one, zero = scores[labels == 1][:, None], scores[labels == 0][None, :]
    return float(((one > zero) + (one == zero) / 2).mean())


@pytest.mark.long
@pytest.mark.parametrize(("task", "metric"), [("driver-dnf", "roc_auc"), ("driver-position", "mae")])
def test_a_task_trains_from_the_command_and_is_scored_by_the_metric_of_relbench(
    task: str, metric: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_database(Path("rel-own"))
    cut_offs = ("--val", "2008-10-01", "--test", "2010-05-01")
    assert exit_code("import", "relbench:rel-own", "own", "--root", "rel-own", *cut_offs, "--task", task) == 0
    assert f"khop train own-{task}/run.toml" in capfd.readouterr().out.replace("\n", " ")
    settings = ("--epochs", "2", "--hidden", "8", "--fanouts", "6,4", "--batch-size", "256", "--out", "out")
    assert exit_code("train", f"own-{task}/run.toml", *settings) == 0
    capfd.readouterr()
    assert exit_code("evaluate", "out", "--predictions", "test.parquet", "--json") == 0
    outcome = json.loads(capfd.readouterr().out.splitlines()[-1])
    given, rows = pq.read_table(f"rel-own/tasks/{task}/test.parquet"), pq.read_table("test.parquet")
    assert rows["id"].to_pylist() == given["driverId"].to_pylist()
    assert rows["time"].cast(pa.int64()).equals(given["date"].cast(pa.int64()))
    labels = given.column(2).to_numpy()
    if metric == "mae":
        expected = float(np.abs(rows["prediction"].to_numpy() - labels).mean())
        assert expected < float(np.abs(labels - np.median(labels)).mean())
    else:
        scores = np.array(rows["scores"].to_pylist())[:, 1]
        expected = area(labels, scores)
        assert expected > 0.6
    assert outcome[f"test_{metric}"] == pytest.approx(expected, rel=1e-5)


def mean_average_precision(found: npt.NDArray[np.int64], wanted: list[list[int]]) -> float:
    """link_prediction_map of RelBench's package: `found` (rows, k) are the best destinations of each row."""
    count = found.shape[1]
    is_in = np.stack([np.isin(row, listed) for row, listed in zip(found, wanted, strict=True)])
    sizes = np.array([len(listed) for listed in wanted]).clip(max=count)
    precision = np.cumsum(is_in, axis=1) / (np.arange(count) + 1)
    return float(((precision * is_in).sum(axis=1) / sizes).mean())


@pytest.mark.long
def test_a_recommendation_task_trains_from_the_command_and_is_scored_by_map(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_database(Path("rel-own"))
    cut_offs = ("--val", LIMITS["val"], "--test", LIMITS["test"])
    task = ("--task", "driver-circuits")
    assert exit_code("import", "relbench:rel-own", "own", "--root", "rel-own", *cut_offs, *task) == 0
    assert "khop train own-driver-circuits/run.toml" in capfd.readouterr().out.replace("\n", " ")
    settings = ("--epochs", "2", "--hidden", "8", "--batch-size", "64", "--out", "out")
    assert exit_code("train", "own-driver-circuits/run.toml", *settings, "--precision", "float64") == 0
    capfd.readouterr()
    assert exit_code("evaluate", "out", "--split", "all", "--metric", "map@3", "--json") == 0
    outcome = json.loads(capfd.readouterr().out.splitlines()[-1])
    run = prepare(read_toml(Path("out/config.toml")), tmp_path)
    run.restore(Path("out/checkpoints/best"), print, ())
    drivers, circuits = (np.asarray(khop.open_ids("own", name).ids(range(n))) for name, n in COUNTS)
    place = {driver: number for number, driver in enumerate(drivers.tolist())}
    for split in ("val", "test"):
        graph = getattr(run.run_task.split, split)  # type: ignore[attr-defined]
        dates = pq.read_table("rel-own/db/results.parquet")["date"].to_numpy()
        known = int((dates < np.datetime64(LIMITS[split])).sum())  # nothing of a later date
        assert graph.num_edges(("results", "raceId", "races")) == known
        rows = node_rows(run.model.encoder, graph, graph.features, ["drivers", "circuits"])  # type: ignore[arg-type]
        scores = (rows["drivers"] @ rows["circuits"].T).detach().numpy()
        given = pq.read_table(f"rel-own/tasks/driver-circuits/{split}.parquet")
        best = circuits[np.argsort(-scores, axis=1, kind="stable")]
        found = best[[place[driver] for driver in given["driverId"].to_pylist()]]
        for count in (3, 10):
            expected = mean_average_precision(found[:, :count], given["circuitId"].to_pylist())
            assert outcome[f"{split}_map@{count}"] == pytest.approx(expected, rel=1e-9)
            assert 0 < expected < 1


def test_the_graph_does_not_have_the_column_that_a_task_completes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """An autocomplete task predicts a column of the database, here with more than two texts."""
    monkeypatch.chdir(tmp_path)
    write_database(Path("rel-own"))
    table = pq.read_table("rel-own/db/races.parquet")
    weather = pa.array([("dry", "wet", "fog")[race % 3] for race in range(RACES)])
    table = table.append_column("weather", weather)
    stored(Path("rel-own/db/races.parquet"), table, {"circuitId": "circuits"}, "date", "raceId")
    for split, first, last in (("train", 0, 70), ("val", 70, 90), ("test", 90, RACES)):
        rows = table.select(["date", "raceId", "weather"]).slice(first, last - first)
        stored(Path(f"rel-own/tasks/weather/{split}.parquet"), rows, {"raceId": "races"}, "date")
    cut_offs = ("--val", LIMITS["val"], "--test", LIMITS["test"])
    named = ("import", "relbench:rel-own", "own", "--root", "rel-own", *cut_offs, "--task", "weather")
    assert exit_code(*named) == 0
    assert "weather of races is the label" in capfd.readouterr().out.replace("\n", " ")
    task = read_toml(Path("own-weather/run.toml")).values["task"]
    assert task == {
        "kind": "node-classification", "target": "races", "label": "weather", "metric": "accuracy",
    }  # fmt: skip
    assert set(khop.open_graph("own").schema.columns["races"]) == {"time"}
    assert exit_code("import", "relbench:rel-own", "all", "--root", "rel-own", *cut_offs) == 0
    assert set(khop.open_graph("all").schema.columns["races"]) > {"time"}


def test_files_of_other_tasks_and_without_keys_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_database(Path("rel-own"))
    links = {"driverId": "drivers", "raceId": "races"}
    rows = pa.table({"date": days(np.arange(2)), "driverId": [0, 1], "raceId": [0, 1]})
    stored(Path("rel-own/tasks/starts/train.parquet"), rows, links, "date")
    words = (
        "import",
        "relbench:rel-own",
        "own",
        "--root",
        "rel-own",
        "--val",
        "2008-10-01",
        "--test",
        "2010-05-01",
    )
    assert exit_code(*words, "--task", "starts") != 0
    assert "one column with lists of ids" in capfd.readouterr().err.replace("\n", " ")
    assert exit_code(*words, "--task", "nothing") != 0
    assert "give the folder of the task nothing of rel-own" in capfd.readouterr().err.replace("\n", " ")
    assert not Path("own").exists()
