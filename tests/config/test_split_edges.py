"""The split edges of a run: held-out edges and their reverses carry no message, and equal runs are equal."""

from __future__ import annotations

from pathlib import Path

import torch

from khop.config.build import prepare
from khop.config.edge_run_task import EdgeTask
from khop.config.read import RawRun
from khop.config.split_edges import SplitEdges
from support.small_labeled import LIKE, write_labeled_graph


def split_of(graph: Path, seed: int) -> SplitEdges:
    values = {
        "graph": str(graph),
        "task": {"kind": "edge-regression", "label": "weight"},
        "sampler": {"fanouts": [3]},
        "links": {"val": 0.2},
        "training": {"seed": seed},
        "model": {"hidden": 4},
    }
    run_task = prepare(RawRun(values, "run.toml"), graph.parent).run_task
    assert isinstance(run_task, EdgeTask)
    return run_task.parts


def test_training_messages_are_the_training_edges_and_equal_runs_have_equal_parts(tmp_path: Path) -> None:
    graph = write_labeled_graph(tmp_path / "graph")
    one, again, other = (split_of(graph, seed) for seed in (1, 1, 2))
    split = one.split
    counts = [links.counts[LIKE] for links in (split.train_links, split.val_links, split.test_links)]
    assert sum(counts) == one.whole.num_edges(LIKE)
    assert split.train.num_edges(LIKE) == counts[0]
    assert split.test.num_edges(LIKE) == counts[0] + counts[1]
    assert abs(counts[1] - 288) < 30
    assert torch.equal(split.val_links.edges[LIKE], again.split.val_links.edges[LIKE])
    assert not torch.equal(split.val_links.edges[LIKE], other.split.val_links.edges[LIKE])
    assert (one.edge_type, one.fanouts, one.measured, one.followed) == (LIKE, ({LIKE: 3},), (), (LIKE,))
