"""The Taobao example keeps clear of the tutorial's three defects."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.sparse import csr_array

import khop

EXAMPLE = Path(__file__).parents[1] / "examples" / "taobao.py"


def numbers(line: str) -> list[float]:
    """Loss and both AUCs of one epoch."""
    return [float(number) for number in re.findall(r"\d+\.\d+", line)]


def test_two_ranks_learn_and_measure_what_one_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The loss is the mean over all pairs of all ranks, and every rank takes part in evaluation."""
    monkeypatch.chdir(tmp_path)
    with torch.random.fork_rng():
        runpy.run_path(str(EXAMPLE))["train"](0, torch.device("cpu"), None, 1)
    loss, val, test = numbers(capsys.readouterr().out)
    assert 0.5 < loss < 0.7
    assert val > 0.55
    both = subprocess.run(
        [sys.executable, str(EXAMPLE), "--epochs", "1", "--procs", "2"],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert both.returncode == 0, both.stderr
    assert numbers(both.stdout) == pytest.approx([loss, val, test], abs=2e-3)


def test_items_go_together_by_what_training_shows_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    example = runpy.run_path(str(EXAMPLE))
    graph = khop.open_graph(example["shop_folder"](None))
    parts = example["parts_of"](graph)
    edge_type, together = example["TO"], example["TOGETHER"]

    def counts(users: torch.Tensor, items: torch.Tensor) -> csr_array:
        shape = (graph.num_nodes("user"), graph.num_nodes("item"))
        bought = csr_array((np.ones(users.numel()), (users.numpy(), items.numpy())), shape)
        product = csr_array(bought.T @ bought)
        product.setdiag(0)
        return csr_array(product >= 3)

    def ends(of: khop.Graph) -> tuple[torch.Tensor, torch.Tensor]:
        csc = of.csc(edge_type)
        return csc.indices.long(), torch.repeat_interleave(csc.indptr.diff())

    split = khop.split_links(graph, edge_type, val=0.1, test=0.1, negatives=1)
    expected, leaking = counts(*ends(split.train)), counts(*ends(graph))
    assert 0 < expected.nnz < leaking.nnz
    for heard, _ in parts.values():
        shown = heard.csc(together)
        assert shown.num_edges == expected.nnz
        assert shown.indptr.tolist() == expected.indptr.tolist()
