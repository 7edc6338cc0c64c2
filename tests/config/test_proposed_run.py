"""Run files proposed for graphs: each trains as it is written."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from tests.api.test_time_split import many
from tests.importing.shop import spec
from typer.testing import CliRunner

import khop
from khop.cli.main import app
from khop.config.proposed_run import proposed_run
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


def test_a_label_with_splits_is_the_task(tmp_path: Path) -> None:
    values = trains(write_diary(tmp_path / "diary"), tmp_path)
    assert values["task"] == {"kind": "node-classification", "target": "user", "label": "kind"}


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


def test_links_are_split_at_random_without_times(tmp_path: Path) -> None:
    values = trains(write_shop(tmp_path / "shop"), tmp_path)
    assert values["task"] == {"kind": "link-prediction", "target": "user buys item"}
    assert values["links"]["split"] == "random"  # type: ignore[index]
    assert values["model"]["embedding"] == 32  # type: ignore[index]


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
