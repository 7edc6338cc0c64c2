"""The baseline of own features: the same task without the graph, whatever the edges are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from khop.inference.chunks import unwatched
from khop.run.build import Run, prepare
from khop.run.read import RawRun
from khop.run.tasks.baselines import own_features
from khop.training.step_clock import Unwatched
from support.small_folders import write_learnable_graph
from support.small_link_folders import write_shop
from support.typed_runs import prepared, write_tagged_shop

LINKS = {
    "task": {"kind": "link-prediction", "target": "user buys item"},
    "links": {"eval_negatives": 10},
    "training": {"batch_size": 256, "epochs": 2},
}


def run_on(graph: Path, **tables: Any) -> Run:  # noqa: ANN401
    values = {
        "graph": str(graph),
        "sampler": {"fanouts": [4, 3]},
        "model": {"hidden": 16},
        "compute_threads": 1,
    }
    training = {"epochs": 3, "batch_size": 64, "learning_rate": 0.03}
    return prepare(RawRun({**values, "training": training, **tables}, "run.toml"), graph.parent / "cache")


def scores(run: Run, out: Path) -> dict[str, float]:
    baseline = own_features(run, RawRun({}, "run.toml"))
    baseline.trainer(out, Unwatched()).fit()
    return baseline.scores(baseline.run_task.splits, unwatched)


def test_the_outputs_are_those_of_a_multilayer_perceptron_of_the_input_column(tmp_path: Path) -> None:
    run = run_on(write_learnable_graph(tmp_path / "toy"), model={"hidden": 16, "dropout": 0.2})
    baseline = own_features(run, RawRun({}, "run.toml"))
    model, x = baseline.model.eval(), run.graph.columns["item"]["x"]
    assert isinstance(model, torch.nn.Module)
    names = dict(model.named_parameters())
    own, bias = ([p for name, p in names.items() if f".{kind}." in name] for kind in ("own", "bias"))
    assert len(own) == len(bias) == 2
    assert not any("neighbors" in name for name in names)
    h = x
    for weight, offset in zip(own, bias, strict=True):
        h = torch.nn.functional.linear(h, weight, offset).relu()
    (head,) = model.heads.values()  # type: ignore[operator, union-attr]
    nodes = torch.tensor([5, 0, 9])
    found = baseline.run_task.context.outputs(model, "item", nodes, unwatched)  # type: ignore[attr-defined]
    torch.testing.assert_close(found, head(h)[nodes], rtol=1e-5, atol=1e-6)


@pytest.mark.long
def test_edges_change_no_score(tmp_path: Path) -> None:
    """The nodes of both graphs are equal, and the edges are not."""
    first = run_on(write_learnable_graph(tmp_path / "toy"))
    graph = first.graph
    import khop

    nodes = {
        "item": khop.NodeTable(
            columns=graph.columns["item"], splits=_splits(first), num_classes={"category": 4}
        )
    }
    other = {("item", "like", "item"): khop.EdgeTable(torch.arange(600), torch.arange(600).flip(0))}
    second = run_on(khop.write_graph(tmp_path / "other", nodes, other))
    assert scores(first, tmp_path / "a") == scores(second, tmp_path / "b")


def _splits(run: Run) -> dict[str, torch.Tensor]:
    return {name: run.graph.split(name)["item"] for name in ("train", "val", "test")}  # type: ignore[misc]


@pytest.mark.long
def test_features_that_tell_little_are_beaten_by_neighbors_and_beat_the_majority(tmp_path: Path) -> None:
    run = run_on(write_learnable_graph(tmp_path / "toy"))
    run.trainer(tmp_path / "run", Unwatched()).fit()
    found = run.compared(("test",), unwatched)
    own = scores(run, tmp_path / "own")["test"]
    assert found["test/majority/accuracy"] + 0.1 < own < found["test"] - 0.1


@pytest.mark.core(1)
@pytest.mark.parametrize("kind", ["gat", "gcn", "hgt", "rgcn"])
def test_each_model_has_the_same_baseline(tmp_path: Path, kind: str) -> None:
    rule = {"rule": {"kind": "symmetric-sum"}} if kind == "gcn" else {}
    graph = write_learnable_graph(tmp_path / "toy")
    model = {"kind": kind, "hidden": 16, "embedding": 4, "embedded_types": "all", "unknown": 0.1}
    run = run_on(graph, model=model, sampler={"fanouts": [4, 3], **rule})
    plain = run_on(graph)
    one, other = (own_features(each, RawRun({}, "run.toml")) for each in (run, plain))
    ours, theirs = one.model.state_dict(), other.model.state_dict()
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


@pytest.mark.long
def test_links_have_one_too_with_the_same_pairs(tmp_path: Path) -> None:
    run = run_on(write_shop(tmp_path / "shop"), **LINKS)
    baseline = own_features(run, RawRun({}, "run.toml"))
    ours, theirs = run.run_task.split, baseline.run_task.split  # type: ignore[attr-defined]
    edge_type = ("user", "buys", "item")
    for one, other in ((ours.val_links, theirs.val_links), (ours.test_links, theirs.test_links)):
        at = torch.arange(one.counts[edge_type])
        assert torch.equal(one.rows(edge_type, at).edges, other.rows(edge_type, at).edges)
        assert torch.equal(one.rows(edge_type, at).negatives, other.rows(edge_type, at).negatives)
    assert scores(run, tmp_path / "own").keys() == {"val", "test", "val/roc-auc", "test/roc-auc"}


def test_a_task_without_own_features_is_refused(tmp_path: Path) -> None:
    tables = {"task": {"kind": "node-classification", "target": "item", "label": "kind"}}
    run = prepared(write_tagged_shop(tmp_path / "shop"), **tables, model={"embedding": 4, "column": "x"})
    own_features(run, RawRun({}, "run.toml"))
    links = {
        "task": {"kind": "link-prediction", "target": "tag on item"},
        "model": {"embedding": 4, "hidden": 4},
    }
    own_features(prepared(tmp_path / "shop", **links), RawRun({}, "run.toml"))  # items have features
    import khop

    pairs = torch.arange(40)
    ends = {
        ("a", "to", "b"): khop.EdgeTable(pairs, pairs.flip(0)),
        ("b", "of", "a"): khop.EdgeTable(pairs, pairs),
    }
    tables = {"a": khop.NodeTable(count=40), "b": khop.NodeTable(count=40)}
    tables["c"] = khop.NodeTable(columns={"x": torch.zeros(1, 2)})
    bare = khop.write_graph(tmp_path / "bare", tables, ends)
    task = {"kind": "link-prediction", "target": "a to b"}
    run = run_on(bare, task=task, links={"eval_negatives": 2}, model={"hidden": 4, "embedding": 4})
    with pytest.raises(
        ValueError, match="--baselines: a, b has no column 'x', so there are no node features to train on"
    ):
        own_features(run, RawRun({}, "run.toml"))
