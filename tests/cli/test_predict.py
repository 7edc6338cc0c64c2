"""`khop predict`: from tables to predictions by the users' own ids, in processes."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import chdir
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from cli.conftest import Ran
from cli.test_next_steps import commands_in, follow
from khop import import_tables
from support.commands import train_here
from support.later_shops import later_spec, later_tables, shop_spec, shop_tables

Command = Callable[..., Ran]
RUN = """
    graph = "shop"
    out = "run"
    compute_threads = 1
    task = { kind = "node-classification", target = "item", label = "label" }
    sampler = { fanouts = [4, 3] }
    model = { hidden = 8 }
    training = { epochs = 2, batch_size = 8 }
"""
LATER = """
    [nodes.user]
    files = ["users.csv"]
    id = "user_id"
    [nodes.item]
    files = ["items.parquet"]
    id = "item_id"
    [edges."user buys item"]
    files = ["events.parquet"]
    source = "user_id"
    destination = "item_id"
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a graph and a run."""
    home = tmp_path_factory.mktemp("shop")
    (home / "run.toml").write_text(RUN)
    with chdir(home):
        import_tables(shop_spec(shop_tables()), "shop")
        train_here("run.toml")
    return home


@pytest.fixture
def trained(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The run, in a working directory that is a copy of the folder."""
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return Path("run")


@pytest.mark.long
def test_later_files_become_predictions_in_other_processes(trained: Path, khop_command: Command) -> None:
    found = later_tables()
    import pyarrow.csv

    pyarrow.csv.write_csv(found["user"], "users.csv")
    pq.write_table(found["item"], "items.parquet")
    pq.write_table(found["event"], "events.parquet")
    Path("later.toml").write_text(LATER)

    def khop(*words: str) -> str:
        return subprocess.run(
            [sys.executable, "-m", "khop", *words], check=True, capture_output=True, text=True
        ).stdout

    ran = khop_command("import", "later.toml", "later", "--encoders", "run")
    assert "item.brand: 1 rows with words or categories that are not in training" in ran.stdout
    assert commands_in(ran)[-1] == "khop predict run --graph later"
    follow(khop_command, ran)
    outcome = json.loads(khop("predict", "run", "--graph", "later", "--out", "new.parquet", "--json"))
    assert outcome == {
        "run": "run", "checkpoint": "best", "graph": "later", "rows": 5, "predictions": "new.parquet",
    }  # fmt: skip
    rows = pq.read_table("new.parquet")
    assert rows["id"].to_pylist() == found["item"]["item_id"].to_pylist()
    assert set(rows["prediction"].to_pylist()) <= {"hat", "shoe"}


def test_the_first_rows_are_printed_without_a_file(trained: Path, khop_command: Command) -> None:
    import_tables(later_spec(later_tables()), "later", encoders=trained)
    ran = khop_command("predict", "run", "--graph", "later")
    follow(khop_command, ran)
    assert Path("predictions.parquet").is_file()
    lines = ran.stdout.splitlines()
    assert lines[-2:] == ["Next:", "khop predict run --graph later --out predictions.parquet"]
    assert lines[0].split() == ["id", "prediction", "score"]
    assert [line.split()[0] for line in lines[1:6]] == later_tables()["item"]["item_id"].to_pylist()


@pytest.mark.long
def test_pairs_of_a_run_of_links_are_scored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, khop_command: Command
) -> None:
    monkeypatch.chdir(tmp_path)
    import_tables(shop_spec(shop_tables()), "shop")
    khop_command(
        "train", "--graph", "shop", "--task", "link-prediction", "--target", "user buys item",
        "--out", "links", "--epochs", "1", "--hidden", "4", "--eval-negatives", "2", "--compute-threads", "1",
    )  # fmt: skip
    import_tables(later_spec(later_tables()), "later", encoders="links")
    pairs = later_tables()["event"].select(["user_id", "item_id"])
    pq.write_table(pairs, "pairs.parquet")
    words = ("predict", "links", "--pairs", "pairs.parquet")
    ran = khop_command(*words, "--graph", "later", "--out", "scores.parquet", "--json")
    assert json.loads(ran.stdout) == {
        "run": "links", "checkpoint": "best", "graph": "later", "pairs": "pairs.parquet", "rows": 40,
        "predictions": "scores.parquet",
    }  # fmt: skip
    scores = pq.read_table("scores.parquet")
    assert scores["source_id"].to_pylist() == pairs["user_id"].to_pylist()
    assert scores["score"].null_count == 0
    assert "unknown" not in ran.stderr
    ran = khop_command(*words)
    khop_command(*words, "--out", "alone.parquet")
    unknown = pq.read_table("alone.parquet")["score"].null_count
    assert unknown > 0
    assert f"khop: {unknown} of 40 pairs have an unknown id: their score is null\n" in ran.stderr
    lines = ran.stdout.splitlines()
    assert lines[0].split() == ["source_id", "destination_id", "score"]
    assert lines[11] == "and 30 more; --out FILE.parquet writes all"
    alone = khop_command("predict", "links")
    assert alone.stderr.startswith("khop: --graph is missing: give a folder of new nodes, --pairs FILE")


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (
            ("run", "--graph", "shop"),
            "shop: was not imported with --encoders; run khop import",
        ),
        (("run", "--graph", "gone"), "gone: no such folder"),
        (("run", "--graph", "later", "--out", "a.csv"), "--out a.csv: give a name that ends in .parquet"),
        (("shop", "--graph", "later"), "shop: not a run folder, it has no config.toml"),
    ],
    ids=["another graph", "no folder", "no parquet", "no run"],
)
def test_what_does_not_fit_is_one_sentence(
    trained: Path, khop_command: Command, words: tuple[str, ...], problem: str
) -> None:
    import_tables(later_spec(later_tables()), "later", encoders=trained)
    ran = khop_command("predict", *words)
    assert ran.code == 2
    assert problem in ran.stderr.replace("\n", " ")
