"""A run on links of several edge types takes one course on any number of ranks and after a resume."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import khop
from khop.graph.build import write_graph
from khop.graph.tables import EdgeTable, NodeTable
from support.commands import train
from support.small_link_folders import BUYS, write_shop

RUN = """
graph = "{graph}"
precision = "float64"
task = {{ kind = "link-prediction", target = "user buys item, {other}", metric = "mrr" }}
links = {{ loss = {{ kind = "bpr" }}, val = 0.2, test = 0.2, eval_negatives = 5, split = "{split}"{more} }}
sampler = {{ fanouts = [3] }}
model = {{ hidden = 16, embedding = 4, dropout = 0.0 }}
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
    run.write_text(RUN.format(graph=graph, other="user sees shop", split="random", more=""))
    train(str(run), "--out", str(tmp_path / "one"))
    train(str(run), "--out", str(tmp_path / "many"), "--epochs", "1", "--procs", "2")
    train("--resume", str(tmp_path / "many"), "--epochs", "2", "--procs", "4")
    expected = course(tmp_path / "one")
    assert {"val_user buys item_mrr", "val_user sees shop_mrr"} <= set(expected[-1])
    assert course(tmp_path / "many") == [pytest.approx(line, rel=1e-9) for line in expected]


def write_two_ways(path: Path) -> Path:
    """Users buy and like items, which have no columns, day by day."""
    random, days = torch.Generator().manual_seed(5), torch.arange(400) // 4
    nodes = {"user": NodeTable(columns={"x": torch.randn(40, 3, generator=random)}), "item": NodeTable(30)}
    tables = {
        t: EdgeTable(
            torch.randint(40, (400,), generator=random),
            torch.randint(30, (400,), generator=random),
            {"time": days, "split": (torch.randint(5, (400,), generator=random) - 2).clamp(0).to(torch.int8)},
        )
        for t in (BUYS, ("user", "likes", "item"))
    }
    return write_graph(
        path, nodes, tables, documents={"import.json": b'{"time_split": {"val": 60, "test": 80}}'}
    )


@pytest.mark.long
@pytest.mark.parametrize(
    ("split", "more"), [("time", ', decoder = "transe", hard_negatives = 2'), ("column", "")]
)
@pytest.mark.timeout(900)
def test_splits_embeddings_and_hard_negatives_are_equal_on_ranks_of_parts(
    tmp_path: Path, split: str, more: str
) -> None:
    graph = write_two_ways(tmp_path / "graph")
    khop.partition_graph(graph, tmp_path / "graph in parts", 2, method="random")
    run = tmp_path / "run.toml"
    for name, folder, options in (
        ("one", graph, ()),
        ("two", graph, ("--procs", "2")),
        ("parts", tmp_path / "graph in parts", ("--procs", "2")),
    ):
        text = RUN.format(graph=folder, other="user likes item", split=split, more=more)
        run.write_text(text)
        train(str(run), "--out", str(tmp_path / name), *options)
    expected = course(tmp_path / "one")
    assert expected[-1]["val_user likes item_mrr"] > 0
    for name in ("two", "parts"):
        found = course(tmp_path / name)
        assert found == [pytest.approx(line, rel=1e-9) for line in expected], name
