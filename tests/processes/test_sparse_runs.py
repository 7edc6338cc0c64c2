"""Runs over bags of words take one course: dense or sparse, on ranks, on parts, resumed and over servers."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import sparse

pytest.importorskip("pyarrow.flight", reason="pip install pyarrow")

import khop
from support.commands import infer_here, train, train_here
from support.server_processes import servers

RUN = """
graph = "sparse"
precision = "float64"
compute_threads = 1
sampler = { fanouts = [4, 3] }
model = { hidden = 8, dropout = 0.0 }
training = { epochs = 2, batch_size = 40, learning_rate = 0.03 }
"""
WORDS, NODES = 90, 120


def write(kind: str) -> None:
    """Papers with words, of which some tell the class."""
    generator = np.random.default_rng(3)
    kinds = generator.integers(0, 3, NODES)
    words = sparse.random(NODES, WORDS, 0.05, format="lil", random_state=1, dtype=np.float32)
    words[np.arange(NODES), kinds] = 1
    parts = {"train": torch.arange(80), "val": torch.arange(80, 100), "test": torch.arange(100, NODES)}
    columns = {"x": words if kind == "sparse" else words.toarray(), "label": torch.from_numpy(kinds)}
    papers = khop.NodeTable(NODES, columns, parts, {"label": 3})
    ends = torch.from_numpy(generator.integers(0, NODES, (2, 500)))
    khop.write_graph(kind, {"paper": papers}, {("paper", "cites", "paper"): khop.EdgeTable(*ends)})


def course(run: str) -> list[float]:
    lines = map(json.loads, Path(run, "metrics.jsonl").read_text().splitlines())
    return [line[name] for line in lines for name in ("loss", "val_accuracy")]


@pytest.mark.long
@pytest.mark.timeout(900)
def test_all_ways_take_one_course(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for kind in ("sparse", "dense"):
        write(kind)
    khop.partition_graph("sparse", "parts", 2, method="random")
    Path("run.toml").write_text(RUN)
    for kind in ("sparse", "dense"):
        train_here("run.toml", "--graph", kind, "--out", f"runs/{kind}")
        infer_here(f"runs/{kind}", "--out", f"{kind}.npy")
    train("run.toml", "--out", "runs/ranks", "--procs", "2")
    train("run.toml", "--out", "runs/parts", "--graph", "parts", "--procs", "2")
    train("run.toml", "--out", "runs/resumed", "--graph", "parts", "--procs", "2", "--epochs", "1")
    train("--resume", "runs/resumed", "--epochs", "2", "--procs", "4")
    with servers() as start:
        train("run.toml", "--out", "runs/far", "--servers", start("sparse").address)
    expected = course("runs/sparse")
    for name in ("dense", "ranks", "parts", "resumed", "far"):
        assert course(f"runs/{name}") == pytest.approx(expected, rel=1e-9), name
    outputs = [np.load(f"{kind}.npy") for kind in ("sparse", "dense")]
    assert np.allclose(*outputs, rtol=0, atol=1e-9)
