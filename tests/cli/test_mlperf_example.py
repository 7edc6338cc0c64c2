"""MLPerf's R-GAT: from IGB's files to the target accuracy, with the lines of mlcommons/logging."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cli.conftest import Ran

EXAMPLES = Path(__file__).parents[2] / "examples"
Command = Callable[..., Ran]
COUNTS = {"paper": 300, "author": 120, "institute": 10, "fos": 20}
EDGES = {
    ("paper", "cites", "paper"): 900,
    ("paper", "written_by", "author"): 600,
    ("author", "affiliated_to", "institute"): 120,
    ("paper", "topic", "fos"): 300,
}
ONCE = {
    *("submission_benchmark", "submission_org", "submission_division", "submission_status"),
    *("submission_platform", "global_batch_size", "gradient_accumulation_steps", "opt_name"),
    *("opt_base_learning_rate", "init_stop", "run_start", "run_stop", "train_samples", "eval_samples"),
}
OFTEN = {"cache_clear", "init_start", "epoch_start", "eval_start", "eval_accuracy", "eval_stop"}


def igb_tiny(folder: Path) -> None:
    """A folder as IGB publishes it, whose features tell the label of a paper."""
    numbers = np.random.default_rng(1)
    for node_type, count in COUNTS.items():
        home = folder / "tiny" / "processed" / node_type
        home.mkdir(parents=True)
        features = numbers.normal(size=(count, 1024)).astype(np.float32) / 8
        if node_type == "paper":
            labels = np.arange(count) % 5
            features[np.arange(count), labels] += 4
            np.save(home / "node_label_19.npy", labels.astype(np.float32))
        np.save(home / "node_feat.npy", features)
    for edge_type, count in EDGES.items():
        home = folder / "tiny" / "processed" / "__".join(edge_type)
        home.mkdir()
        ends = [numbers.integers(COUNTS[edge_type[end]], size=count) for end in (0, 2)]
        if edge_type[1] == "cites":  # papers of a label cite each other
            ends[1] = (ends[0] + 5 * numbers.integers(60, size=count)) % 300
        np.save(home / "edge_index.npy", np.stack(ends, axis=1))


def mllog(text: str) -> list[dict[str, Any]]:
    return [json.loads(line[9:]) for line in text.splitlines() if line.startswith(":::MLLOG ")]


@pytest.mark.long
def test_it_trains_to_the_target_and_logs_as_mlperf_asks(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    khop_command: Command,
    capsys: pytest.CaptureFixture[str],
) -> None:
    igb_tiny(tmp_path / "igbh")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(EXAMPLES)
    imported = ["import", "igb:hetero-tiny", "--root", "igbh", "--cites", "mlperf", "--dtype", "float16"]
    assert khop_command(*imported, "graph").code == 0
    done = khop_command("graph", "resplit", "graph", "split", "--ratio", "0.6,0.2", "--seed", "42")
    assert done.stdout == "split: train 180, val 60, test 60. Train on it: khop train --graph split\n"
    shape = ["--epochs", "6", "--batch-size", "32", "--hidden", "16", "--learning-rate", "0.01"]
    run = ["mlperf_rgat", "--graph", "split", "--procs", "1", *shape, "--every", "0.5"]
    monkeypatch.setattr("sys.argv", run)
    capsys.readouterr()
    import_module("mlperf_rgat").main()
    lines = mllog(capsys.readouterr().out)
    keys = [line["key"] for line in lines]
    assert {key for key in ONCE if keys.count(key) != 1} == set()
    assert set(keys) >= OFTEN
    by_key = {line["key"]: line for line in lines}
    assert by_key["submission_benchmark"]["value"] == "gnn"
    assert by_key["train_samples"]["value"] == 180
    assert by_key["eval_samples"]["value"] == 60
    assert by_key["run_stop"]["metadata"]["status"] == "success"
    scores = [line for line in lines if line["key"] == "eval_accuracy"]
    assert scores[-1]["value"] >= 0.72
    assert all(line["value"] < 0.72 for line in scores[:-1])
    done = [line["metadata"]["epoch_num"] for line in scores]
    assert done == [0.5 * number for number in range(1, len(done) + 1)]
    assert by_key["run_stop"]["metadata"]["epoch_num"] == done[-1]
    order = [keys.index(key) for key in ("init_start", "init_stop", "run_start", "epoch_start", "eval_start")]
    assert order == sorted(order)
    assert keys[-1] == "run_stop"
    assert [line["time_ms"] for line in lines] == sorted(line["time_ms"] for line in lines)
    assert {line["event_type"] for line in lines} == {"POINT_IN_TIME", "INTERVAL_START", "INTERVAL_END"}


@pytest.mark.long
def test_the_run_file_is_the_same_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, khop_command: Command
) -> None:
    igb_tiny(tmp_path / "igbh")
    monkeypatch.chdir(tmp_path)
    imported = ["import", "igb:hetero-tiny", "--root", "igbh", "--cites", "mlperf", "graph"]
    assert khop_command(*imported).code == 0
    small = ["--hidden", "16", "--batch-size", "60", "--learning-rate", "0.01", "--evaluation-every", "1"]
    run = [str(EXAMPLES / "mlperf_rgat.toml"), "--graph", "graph", *small, "--out", "run"]
    done = khop_command("train", *run)
    assert done.code == 0, done.stderr
    config = tomllib.loads((tmp_path / "run" / "config.toml").read_text())
    assert config["model"]["kind"] == "rgat"
    assert config["training"]["target"] == {"metric": "accuracy", "value": 0.72}
