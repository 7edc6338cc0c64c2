"""The examples of docs/import.md: tables are made, imported, checked and trained on."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import tomli_w

from khop import import_tables, open_graph
from khop.graph.verify import verify_folder

EXAMPLES = Path(__file__).parents[3] / "examples" / "import"
RUNS = {
    "shop": {
        "task": {"kind": "link-prediction", "target": "user buys item"},
        "links": {"eval_negatives": 20},
    },
    "citations": {"task": {"kind": "node-classification", "target": "paper", "label": "label"}},
    "fraud": {
        "task": {"kind": "node-classification", "target": "transaction", "label": "label"},
        "model": {"embedding": 8},
    },
}


@pytest.fixture(scope="module", params=list(RUNS))
def example(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    name: str = request.param
    folder = tmp_path_factory.mktemp(name)
    subprocess.run([sys.executable, EXAMPLES / "make_tables.py", name, folder], check=True, timeout=120)
    shutil.copy(EXAMPLES / f"{name}.toml", folder)
    import_tables(folder / f"{name}.toml", folder / "graph", threads=2)
    return folder


@pytest.mark.long
def test_an_example_becomes_a_sound_graph(example: Path) -> None:
    assert verify_folder(example / "graph") == []
    graph = open_graph(example / "graph")
    assert all(graph.num_edges(edge_type) > 1000 for edge_type in graph.schema.edge_types)


@pytest.mark.long
def test_an_example_trains(example: Path) -> None:
    (name,) = (path.stem for path in example.glob("*.toml"))
    options = {
        "graph": str(example / "graph"), "sampler": {"fanouts": [5, 5]},
        "training": {"epochs": 4, "batch_size": 128, "learning_rate": 0.01}, **RUNS[name],
        "model": {"hidden": 16, **RUNS[name].get("model", {})},
    }  # fmt: skip
    (example / "run.toml").write_text(tomli_w.dumps(options))
    command = [sys.executable, "-m", "khop", "train", example / "run.toml", "--out", example / "run"]
    subprocess.run(command, check=True, timeout=250, capture_output=True)
    last = json.loads((example / "run" / "metrics.jsonl").read_text().splitlines()[-1])
    metric, least = {
        "shop": ("test_roc_auc", 0.6),
        "citations": ("test_accuracy", 0.8),
        "fraud": ("loss", 0),
    }[name]
    assert last[metric] > least
    assert last["loss"] < 0.7


def test_the_shop_takes_no_more_than_25_lines() -> None:
    lines = (EXAMPLES / "shop.toml").read_text().splitlines()
    assert sum(1 for line in lines if line.strip()) <= 25
