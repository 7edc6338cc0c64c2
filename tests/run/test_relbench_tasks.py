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

from khop.cli.main import run

DRIVERS, RACES = 24, 120
FIRST = datetime(2003, 1, 1)


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
        pa.table({"raceId": np.arange(RACES), "date": days(races)}),
        {},
        "date",
        "raceId",
    )
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


def command(*words: str) -> int:
    with pytest.raises(SystemExit) as left:
        run([*words])
    return int(left.value.code or 0)


def area(labels: npt.NDArray[np.int64], scores: npt.NDArray[np.float64]) -> float:
    """roc_auc_score of scikit-learn, which RelBench calls: pairs in order, equal scores by half."""
    one, zero = scores[labels == 1][:, None], scores[labels == 0][None, :]
    return float(((one > zero) + (one == zero) / 2).mean())


@pytest.mark.core(1)
@pytest.mark.parametrize(("task", "metric"), [("driver-dnf", "roc_auc"), ("driver-position", "mae")])
def test_a_task_trains_from_the_command_and_is_scored_by_the_metric_of_relbench(
    task: str, metric: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_database(Path("rel-own"))
    cut_offs = ("--val", "2008-10-01", "--test", "2010-05-01")
    assert command("import", "relbench:rel-own", "own", "--root", "rel-own", *cut_offs, "--task", task) == 0
    assert f"khop train own-{task}/run.toml" in capfd.readouterr().out.replace("\n", " ")
    settings = ("--epochs", "2", "--hidden", "8", "--fanouts", "6,4", "--batch-size", "256", "--out", "out")
    assert command("train", f"own-{task}/run.toml", *settings) == 0
    capfd.readouterr()
    assert command("evaluate", "out", "--predictions", "test.parquet", "--json") == 0
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


def test_tasks_over_links_and_files_without_keys_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_database(Path("rel-own"))
    links = {"driverId": "drivers", "raceId": "races"}
    rows = pa.table({"date": days(np.arange(2)), "driverId": [0, 1], "raceId": [[0], [1]]})
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
    assert command(*words, "--task", "starts") != 0
    assert "tasks over links are not read" in capfd.readouterr().err.replace("\n", " ")
    assert command(*words, "--task", "nothing") != 0
    assert "give the folder of the task nothing of rel-own" in capfd.readouterr().err.replace("\n", " ")
    assert not Path("own").exists()
