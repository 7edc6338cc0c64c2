"""A run on links of several edge types takes one course on any number of ranks and after a resume."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from support.commands import train
from support.small_link_folders import write_shop

RUN = """
graph = "{graph}"
precision = "float64"
task = {{ kind = "link-prediction", target = "user buys item, user sees shop", metric = "mrr" }}
links = {{ loss = "bpr", val = 0.2, test = 0.2, eval_negatives = 5 }}
sampler = {{ fanouts = [3] }}
model = {{ hidden = 8, embedding = 4, dropout = 0.0 }}
training = {{ epochs = 2, batch_size = 150 }}
"""


def course(run: Path) -> list[dict[str, float]]:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [
        {key: of for key, of in line.items() if key == "loss" or key.startswith("val_")} for line in lines
    ]


@pytest.mark.long
@pytest.mark.timeout(900)
def test_ranks_and_a_resume_take_the_same_course(tmp_path: Path) -> None:
    graph = write_shop(tmp_path / "graph", users=60, items=40, one_way=True)
    run = tmp_path / "run.toml"
    run.write_text(RUN.format(graph=graph))
    train(str(run), "--out", str(tmp_path / "one"))
    train(str(run), "--out", str(tmp_path / "many"), "--epochs", "1", "--procs", "2")
    train("--resume", str(tmp_path / "many"), "--epochs", "2", "--procs", "4")
    expected = course(tmp_path / "one")
    assert {"val_user buys item_mrr", "val_user sees shop_mrr"} <= set(expected[-1])
    assert course(tmp_path / "many") == [pytest.approx(line, rel=1e-9) for line in expected]
