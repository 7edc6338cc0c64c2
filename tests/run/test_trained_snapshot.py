"""Embeddings by node and later rows: a run reads the snapshot that it was trained on."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import khop
from cli.conftest import Ran, khop_command
from cli.test_append import Command
from support.later_shops import later_spec, later_tables, shop_spec, shop_tables

__all__ = ["khop_command"]
LINKS = """
    graph = "shop"
    out = "run"
    compute_threads = 1
    task = { kind = "link-prediction", target = "user buys item" }
    links = { eval_negatives = 5 }
    sampler = { fanouts = [4] }
    model = { hidden = 8, embedding = 4, embedded_types = "all" }
    training = { epochs = 1, batch_size = 64 }
"""


@pytest.fixture
def trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, khop_command: Command) -> Path:
    """A graph and a run on it in the working directory."""
    monkeypatch.chdir(tmp_path)
    khop.import_tables(shop_spec(shop_tables()), "shop")
    Path("run.toml").write_text(LINKS)
    assert khop_command("train", "run.toml").code == 0
    pairs = pa.table({"user_id": ["u4", "u7"], "item_id": ["i9", "i2"]})
    pq.write_table(pairs, "pairs.parquet")
    return tmp_path


def results(khop_command: Command) -> list[object]:
    """Return the outcome of each command on the run."""
    commands = (
        ("evaluate", "run", "--predictions", "out.parquet"),
        ("infer", "run", "--node-type", "item", "--out", "out.parquet"),
        ("predict", "run", "--pairs", "pairs.parquet", "--out", "out.parquet"),
        ("recommend", "run", "-k", "3", "--out", "out.parquet"),
    )
    found: list[object] = []
    for words in commands:
        Path("out.parquet").unlink(missing_ok=True)
        ran: Ran = khop_command(*words)
        assert ran.code == 0, ran.stderr
        found.append(pq.read_table("out.parquet").to_pylist())
    return found


@pytest.mark.long
def test_commands_read_the_nodes_of_training(trained: Path, khop_command: Command) -> None:
    before = results(khop_command)
    khop.append("shop", later_spec(later_tables()))
    assert results(khop_command) == before
    khop.append("shop", delete={"user": ["u1", "u2", "u3"], "item": [f"i{n}" for n in range(5)]})
    assert khop.open_graph("shop").num_nodes("item") == 40  # as in training, with other numbers
    assert results(khop_command) == before
    said = khop_command("evaluate", "run").stderr
    assert "without the rows of" in said
    with pytest.warns(UserWarning, match="its embeddings belong to the nodes of training, so .* is used"):
        assert khop.load_run("run").run.fingerprint != khop.open_folder("shop").fingerprint
    khop.compact("shop")
    ran = khop_command("evaluate", "run")
    assert ran.code == 2
    assert "train again: khop train run/config.toml" in " ".join(ran.stderr.split())
