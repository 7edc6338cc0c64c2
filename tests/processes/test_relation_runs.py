"""Runs over a column of relations take one course: after a resume, on ranks, and on a partitioned graph."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from khop.api.partition import partition_graph
from support.commands import train, train_here
from support.knowledge import Triples, as_column

RUN = """
graph = "{graph}"
precision = "float64"
task = {{ kind = "link-prediction", target = "entity fact entity", metric = "mrr" }}
sampler = {{ fanouts = [3], rule = {{ kind = "relation-mean", column = "r" }} }}
model = {{ kind = "rgcn", hidden = 16, bases = 2, relation = "r", dropout = 0.0 }}
training = {{ epochs = 2, batch_size = 50 }}
[links]
decoder = "{decoder}"
relation = "r"
corrupt = "both"
exact = true
eval_negatives = 5
loss.kind = "{loss}"
"""


def written(home: Path, decoder: str = "complex", loss: str = "bce") -> Path:
    as_column(home / "graph", Triples.drawn())
    path = home / f"{decoder}.toml"
    path.write_text(RUN.format(graph=home / "graph", decoder=decoder, loss=loss))
    return path


def course(run: Path) -> list[tuple[float, float]]:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [(line["loss"], line["val_mrr"]) for line in lines]


@pytest.mark.long
def test_a_resumed_run_takes_the_same_course(tmp_path: Path) -> None:
    run = str(written(tmp_path))
    train_here(run, "--out", str(tmp_path / "one"))
    train_here(run, "--out", str(tmp_path / "many"), "--epochs", "1")
    train_here("--resume", str(tmp_path / "many"), "--epochs", "2")
    assert len(course(tmp_path / "one")) == 2
    assert course(tmp_path / "many") == course(tmp_path / "one")


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("decoder", "loss"),
    [("complex", "bce"), ("transe", "bce"), ("rotate", "bce"), ("distmult", "bce"), ("distmult", "bpr")],
)
def test_ranks_and_partitions_take_the_same_course(tmp_path: Path, decoder: str, loss: str) -> None:
    """Each decoder on two ranks with parts; one of them also on whole graphs, four ranks, after a resume."""
    run, others = str(written(tmp_path, decoder, loss)), ["parts-2"]
    train_here(run, "--out", str(tmp_path / "one"))
    if decoder == "complex":
        others += ["parts-4", "many"]
        train(run, "--out", str(tmp_path / "many"), "--epochs", "1", "--procs", "2")
        train("--resume", str(tmp_path / "many"), "--epochs", "2", "--procs", "4")
    for parts in ("2", "4") if decoder == "complex" else ("2",):
        cut = tmp_path / f"cut-{parts}"
        partition_graph(tmp_path / "graph", cut, int(parts), method="random")
        train(run, "--out", str(tmp_path / f"parts-{parts}"), "--graph", str(cut), "--procs", parts)
    for name in others:
        for one, other in zip(course(tmp_path / name), course(tmp_path / "one"), strict=True):
            assert one == pytest.approx(other, rel=1e-9), name
