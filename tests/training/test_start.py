"""A run starts from the weights of another one: by name, and embeddings by node."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import khop
from khop.models.node_embedding import EmbeddingUpdate
from khop.training.checkpoint import StateCopy, load_checkpoint, restore_optimizer
from khop.training.optimizer_settings import ModelOptimizer, OptimizerSettings
from khop.training.run_log import RunLog
from khop.training.start import start
from support.small_runs import SmallRun, without_seconds

TABLE, UNKNOWN = "encoder.tables.node:user.weight", "encoder.unknown.node:user.weight"
PLACES = torch.tensor([4, -1, 0, 2, -1, 1])  # of six users among the five of the checkpoint


def graph_of(folder: Path, users: int) -> khop.Graph:
    """Items with a column and a label, which users without a column have rated."""
    items = torch.arange(8)
    nodes = {
        "item": khop.NodeTable(
            columns={"x": torch.eye(8), "y": items % 2}, splits={"train": items}, num_classes={"y": 2}
        ),
        "user": khop.NodeTable(count=users),
    }
    edges = {("user", "rates", "item"): khop.EdgeTable(torch.arange(24) % users, torch.arange(24) % 8)}
    khop.write_graph(folder, nodes, edges)
    return khop.open_graph(folder)


def model_of(graph: khop.Graph, seed: int, **options: Any) -> khop.models.SAGE:  # noqa: ANN401
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        of_sizes = {name: options.pop(name) for name in ("embedding_update", "unknown") if name in options}
        sizes = khop.models.ModelSizes.of(graph, embedding=options.pop("embedding", 3), **of_sizes)
        return khop.models.SAGE(sizes, **{"hidden": 4, "layers": 1, **options})


def trained(graph: khop.Graph, folder: Path, settings: OptimizerSettings, **options: Any) -> None:  # noqa: ANN401
    """Write the checkpoint of a model after two updates."""
    model = model_of(graph, 1, **options)
    optimizer = ModelOptimizer(model, 0.1, 0.0, settings)
    loader = khop.Loader(
        khop.NeighborSampler(graph, [3]), graph.split("train"), 4, columns=["x"], seed_columns=["y"]
    )
    for batch in loader:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(batch), batch.seed_column("y")).backward()
        optimizer.exchange()
        optimizer.step()
    StateCopy.of(model, optimizer, {}).write(folder)


def state(model: torch.nn.Module) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


@pytest.mark.parametrize("update", ["dense", "sparse"])
@pytest.mark.parametrize("unknown", [0.0, 0.3])
def test_embeddings_and_their_moments_follow_the_nodes(
    tmp_path: Path, update: EmbeddingUpdate, unknown: float
) -> None:
    options = {"embedding_update": update, "unknown": unknown}
    trained(graph_of(tmp_path / "before", 5), tmp_path / "best", OptimizerSettings(), **options)
    checkpoint = load_checkpoint(tmp_path / "best")
    model = model_of(graph_of(tmp_path / "now", 6), 2, **options)
    fresh, optimizer = state(model), ModelOptimizer(model, 0.025, 0.0)
    start(model, optimizer, checkpoint, {"user": PLACES})

    found = state(model)
    for name in found.keys() - {TABLE}:
        assert torch.equal(found[name], checkpoint.model[name]), name
    known = PLACES >= 0
    assert torch.equal(found[TABLE][known], checkpoint.model[TABLE][PLACES[known]])
    expected = checkpoint.model[UNKNOWN].expand(2, 3) if unknown else fresh[TABLE][~known]
    assert torch.equal(found[TABLE][~known], expected)

    assert {group["lr"] for group in optimizer.param_groups} == {0.025}
    after = StateCopy.of(model, optimizer, {}).optimizer
    for name, moments in checkpoint.optimizer.items():
        if name.startswith(TABLE) and moments.dim():
            assert torch.equal(after[name][known], moments[PLACES[known]])
            assert not after[name][~known].any()
        else:
            assert torch.equal(after[name], moments), name


def test_by_default_nodes_keep_their_numbers_and_further_ones_are_new(tmp_path: Path) -> None:
    trained(graph_of(tmp_path / "before", 5), tmp_path / "best", OptimizerSettings())
    checkpoint = load_checkpoint(tmp_path / "best")
    model = model_of(graph_of(tmp_path / "now", 7), 2)
    fresh = state(model)[TABLE]
    start(model, None, checkpoint, {})
    assert torch.equal(state(model)[TABLE], torch.cat([checkpoint.model[TABLE], fresh[5:]]))
    fewer = model_of(graph_of(tmp_path / "fewer", 4), 2)
    with pytest.raises(
        ValueError, match=r"'user' has 5 embeddings in the checkpoint, but the graph has 4 nodes"
    ):
        start(fewer, None, checkpoint, {})
    start(fewer, None, checkpoint, {"user": torch.tensor([4, 3, 2, 1])})
    assert torch.equal(state(fewer)[TABLE], checkpoint.model[TABLE][[4, 3, 2, 1]])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"hidden": 5}, r"different shapes .*layers"),
        (
            {"embedding": 2},
            r"different shapes .*encoder\.tables\.node:user\.weight is \(5, 3\) instead of \(5, 2\)",
        ),
        ({"unknown": 0.1}, r"missing keys encoder\.unknown\.node:user\.weight"),
        ({"norm": "layer"}, r"missing keys"),
    ],
    ids=str,
)
def test_weights_that_do_not_fit_are_refused_by_name(
    tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    graph = graph_of(tmp_path / "graph", 5)
    trained(graph, tmp_path / "best", OptimizerSettings())
    model = model_of(graph, 2, **options)
    before = state(model)
    with pytest.raises(ValueError, match=message):
        start(model, None, load_checkpoint(tmp_path / "best"), {})
    assert all(torch.equal(before[name], tensor) for name, tensor in state(model).items())


@pytest.mark.parametrize(
    "nodes", [torch.tensor([0, 5]), torch.tensor([0, 1, 2, 3, 5]), torch.zeros(5)], ids=str
)
def test_nodes_that_are_none_are_refused(tmp_path: Path, nodes: Tensor) -> None:
    graph = graph_of(tmp_path / "graph", 5)
    trained(graph, tmp_path / "best", OptimizerSettings())
    with pytest.raises(ValueError, match=r"nodes of 'user': .*; give int64 \(5\), nodes below 5"):
        start(model_of(graph, 2), None, load_checkpoint(tmp_path / "best"), {"user": nodes})


@pytest.mark.parametrize(
    "other", [OptimizerSettings(torch.optim.SGD), OptimizerSettings(options={"amsgrad": True})], ids=str
)
def test_the_state_of_another_optimizer_is_refused(tmp_path: Path, other: OptimizerSettings) -> None:
    graph = graph_of(tmp_path / "graph", 5)
    trained(graph, tmp_path / "best", OptimizerSettings())
    model = model_of(graph, 2)
    with pytest.raises(ValueError, match="the checkpoint has the state of another optimizer"):
        start(model, ModelOptimizer(model, 0.1, 0.0, other), load_checkpoint(tmp_path / "best"), {})


def test_buffers_of_another_shape_are_those_of_the_model(tmp_path: Path) -> None:
    graph = graph_of(tmp_path / "graph", 5)
    model, now = model_of(graph, 1), model_of(graph, 2)
    model.register_buffer("table", torch.ones(5, 2))
    StateCopy.of(model, ModelOptimizer(model, 0.1, 0.0), {}).write(tmp_path / "best")
    now.register_buffer("table", torch.zeros(6, 2))
    start(now, None, load_checkpoint(tmp_path / "best"), {})
    assert torch.equal(now.table, torch.zeros(6, 2))


def test_a_trainer_starts_from_the_weights_of_another_run(tmp_path: Path) -> None:
    """With the optimizer, the second run takes the steps that the first one would have taken."""
    small = SmallRun(tmp_path / "first", dropout=0.0)
    small.with_(epochs=1).trainer().fit()
    best = tmp_path / "first" / "checkpoints" / "best"
    trainer = replace(small, out=tmp_path / "second").trainer()
    trainer.start_from(best, optimizer=True)
    assert (trainer.state.epoch, trainer.state.step) == (0, 0)
    trainer.fit()

    expected = replace(small, out=tmp_path / "expected").trainer()
    checkpoint = load_checkpoint(best)
    khop.restore_model(expected.model, checkpoint)
    restore_optimizer(expected.model, expected.optimizer, checkpoint)
    expected.fit()
    for name in ("steps", "metrics"):
        found, wanted = (
            without_seconds(RunLog(tmp_path / out / f"{name}.jsonl").records())
            for out in ("second", "expected")
        )
        assert found == wanted

    resumed = replace(small, out=tmp_path / "second").with_(epochs=4).trainer()
    resumed.resume()  # reads nothing of the first run
    assert len(resumed.fit().records) == 4
