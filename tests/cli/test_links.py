"""Link prediction by the command: trained, resumed, measured again."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.small_link_folders import write_shop

Command = Callable[..., Any]


@pytest.fixture
def link_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_shop(tmp_path / "shop")
    path = tmp_path / "run.toml"
    path.write_text("""
        graph = "shop"
        compute_threads = 1
        task = { kind = "link-prediction", target = "user buys item" }
        links = { decoder = "mlp", eval_negatives = 20 }
        sampler = { fanouts = [{ "user sees shop" = 0, "*" = 5 }, { "user sees shop" = 0, "*" = 5 }] }
        model = { hidden = 16, dropout = 0.0 }
        training = { epochs = 8, batch_size = 128, learning_rate = 0.01 }
    """)
    return path


@pytest.mark.long
def test_links_are_learned_and_evaluated_again(khop_command: Command, link_run: Path) -> None:
    trained = json.loads(khop_command("train", str(link_run), "--out", "a", "--json").stdout.splitlines()[-1])
    assert trained["test_mrr"] > 0.3  # guessing among 21: 0.17
    assert trained["test_roc_auc"] > 0.75
    assert {"config.toml", "metrics.jsonl", "curve.png"} <= {path.name for path in Path("a").iterdir()}
    again = json.loads(khop_command("evaluate", "a", "--split", "all", "--json").stdout.splitlines()[-1])
    assert 0 < trained["test_popularity_mrr"] < trained["test_mrr"]
    assert 0 < trained["test_popularity_roc_auc"] < trained["test_roc_auc"]
    for name in ("val_mrr", "val_roc_auc", "test_mrr", "test_roc_auc", "val_popularity_mrr"):
        assert again[name] == trained[name]


@pytest.mark.long
def test_a_run_continues_exactly(khop_command: Command, link_run: Path) -> None:
    khop_command("train", str(link_run), "--out", "whole", "--epochs", "2")
    khop_command("train", str(link_run), "--out", "parts", "--epochs", "1")
    khop_command("train", "--resume", "parts", "--epochs", "2")
    whole, parts = (
        [json.loads(line) | {"seconds": 0} for line in Path(name, "metrics.jsonl").read_text().splitlines()]
        for name in ("whole", "parts")
    )
    assert whole == parts


@pytest.mark.long
def test_metrics_of_any_number_of_places_are_measured(khop_command: Command, link_run: Path) -> None:
    ran = khop_command("train", str(link_run), "--out", "a", "--json", "--metric", "hits@3", "--epochs", "1")
    trained = json.loads(ran.stdout.splitlines()[-1])
    assert 0 < trained["test_hits@3"] < 1
    ran = khop_command(
        "evaluate", "a", "--split", "all", "--json", "--metric", "recall@7", "--metric", "ndcg@50"
    )
    again = json.loads(ran.stdout.splitlines()[-1])
    assert again["test_hits@3"] == trained["test_hits@3"] < again["test_recall@7"]
    assert 0 < again["test_ndcg@50"] < 1
    wrong = khop_command("evaluate", "a", "--metric", "hits@0")
    assert wrong.code == 2
    assert "metric 'hits@0': must be one of mrr" in wrong.stderr
    wrong = khop_command("train", str(link_run), "--out", "b", "--metric", "accuracy")
    assert wrong.code == 2
    assert "task.metric 'accuracy': must be one of mrr, roc-auc, average-precision, hits@K" in (wrong.stderr)
