"""`khop report`: a page with what the runs' files and their test splits say."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet
import pytest

from cli.conftest import Ran
from data.tables.shop import roomy, spec
from khop import import_tables
from run.reporting.test_page import Structure

Command = Callable[..., Ran]


def reported(khop_command: Command, *arguments: str) -> str:
    ran = khop_command("report", *arguments, "-o", "out/report.html")
    assert ran.code == 0, ran.stderr
    page = Path("out/report.html").read_text()
    assert len(page.encode()) < 2_000_000
    return page


@pytest.mark.long
def test_a_report_has_scores_worst_nodes_and_times(khop_command: Command, trained_run: None) -> None:
    khop_command("train", "run.toml", "--out", "b", "--hidden", "8", "--epochs", "1")
    measured = khop_command("evaluate", "a", "--predictions", "test.parquet", "--json")
    trained = json.loads(measured.stdout)
    text = Structure(reported(khop_command, "a", "b")).text
    assert f"{trained['test_accuracy']:.4f} (majority" in text
    rows = pyarrow.parquet.read_table("test.parquet").to_pylist()
    lowest = min(rows, key=lambda row: row["scores"][row["label"]])
    assert re.search(rf"{lowest['node']}{lowest['label']}{lowest['prediction']}", text)
    assert "model.hidden" in text
    assert "waiting" in text
    assert re.search(r"Computing takes|Training waits|Ranks wait|core", text)


@pytest.mark.long
def test_the_test_split_is_left_out_on_request_or_with_its_reason(
    khop_command: Command, trained_run: None
) -> None:
    assert "not computed (--no-evaluate)" in reported(khop_command, "a", "--no-evaluate")
    config = Path("a/config.toml")
    config.write_text(re.sub(r'graph = ".*"', 'graph = "moved"', config.read_text()))
    ran = khop_command("report", "a", "-o", "b.html")
    assert ran.code == 0
    assert "the test split is left out: graph is 'moved'" in ran.stderr
    assert "could not be computed: graph is" in Path("b.html").read_text()


@pytest.mark.long
def test_links_have_a_ranking_curve_under_the_users_ids(khop_command: Command, small_run: Path) -> None:
    import_tables(spec(**roomy()), "shop")
    links = ("--task", "link-prediction", "--target", "user buys item", "--epochs", "1")
    khop_command(
        "train", "--graph", "shop", *links, "--out", "l", "--fanouts", "3,3", "--eval-negatives", "5"
    )
    page = reported(khop_command, "l")
    assert "links among the first k of 6 pairs each" in page
    assert "Worst predictions" in page


def test_wrong_arguments_are_named(khop_command: Command, trained_run: None) -> None:
    assert "not a run folder" in khop_command("report", "nowhere").stderr
    Path("folder").mkdir()
    ran = khop_command("report", "a", "-o", "folder")
    assert (ran.code, "is a folder" in ran.stderr) == (2, True)
