"""Training over edges and columns that the ranks of a machine divide is training with the place "host".

Memory that processes share stands for that of GPUs, and Triton's interpreter runs the kernels.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
from torch import Tensor

import khop
from khop.distributed.processes.group import this_group
from khop.graph.rule import Rule
from khop.graph.store import csc_graph_from_edges
from khop.kernels.gather import Shards
from khop.schema import ColumnSpec
from khop.training.recorded_steps import RecordedSteps
from khop.training.trainer import Trainer
from support.covered import covered
from support.host_as_device import HostAsDevice
from support.recorded_runs import RecordedRun, as_device
from support.small_graphs import SmallGraph, one_type
from support.started_ranks import StartedRanks
from support.typed_shop import bits

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="tests/gpu reads shards of a GPU")
EDGE = ("node", "to", "node")
RULES: dict[str, Rule] = {"uniform": khop.Uniform(), "weighted": khop.Weighted("weight")}


def weighted_graph() -> SmallGraph:
    """A graph with weights of edges, whose running sums are divided, too."""
    graph = one_type(torch.float64)
    weights = torch.arange(graph.store.num_edges(EDGE)) % 5 + 1
    store = csc_graph_from_edges({"node": 60}, graph.edges, columns={EDGE: {"weight": weights}})
    specs = {**graph.store.schema.columns, EDGE: {"weight": ColumnSpec("int64", ())}}
    return replace(graph, store=replace(store, schema=replace(store.schema, columns=specs)))


def run_in(out: Path, rule: str, launches: str) -> RecordedRun:
    run = RecordedRun(out, graph=weighted_graph(), rule=RULES[rule])
    return run.with_(launches=launches, epochs=1)


def divided(run: RecordedRun) -> khop.Graph:
    """The graph of a run with edges and columns that the ranks of this machine divide."""
    graph = khop.Graph(run.graph.store, run.graph.features)
    with (
        patch("khop.api.open_graph.memory_of", lambda device: HostAsDevice()),
        patch("khop.api.open_graph.why_no_batches", lambda device: None),
    ):
        return graph.on("cuda", topology="sharded", columns="sharded", check="none")


def losses(out: Path) -> list[float]:
    return [json.loads(line)["loss"] for line in (out / "steps.jsonl").read_text().splitlines()]


def weights_of(trainer: Trainer) -> list[Tensor]:
    return [parameter.detach().clone() for parameter in trainer.model.parameters()]


def fitted(run: RecordedRun, graph: khop.Graph) -> list[Tensor]:
    trainer = run.on(graph)
    trainer.fit()
    assert isinstance(trainer._steps, RecordedSteps) is (run.settings.launches == "recorded")
    return weights_of(trainer)


@covered
def _train(rank: int, device: str, out: Path, cases: list[tuple[str, str]]) -> None:
    """Compare the batches of this rank with those of the place `host`, and train."""
    ranks = this_group().world_size
    for rule, launches in cases:
        run = run_in(out / f"{rule}-{launches}", rule, launches)
        graph = divided(run)
        assert graph.stores is not None
        assert graph.stores.edges is not None
        assert isinstance(graph.stores.edges.csc(EDGE).indices, Shards) is (ranks > 1)
        assert isinstance(graph.stores.columns["node"]["x"], Shards) is (ranks > 1)
        with as_device():
            found = [bits(batch) for batch in run.loader(graph).epoch(0)]
            weights = fitted(run, graph)
        on_host = run.loader(khop.Graph(run.graph.store, run.graph.features))
        assert found == [bits(batch) for batch in on_host.epoch(0)]
        torch.save(weights, run.out / f"weights-{rank}.pt")


WEIGHTED = [("weighted", "recorded")]


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("count", "cases"),
    [
        (1, WEIGHTED),
        (2, [("uniform", "recorded"), ("uniform", "single"), *WEIGHTED]),
        (4, [("weighted", "single"), *WEIGHTED]),
    ],
)
def test_batches_losses_and_weights_are_those_of_the_place_host(
    tmp_path: Path, ranks: StartedRanks, count: int, cases: list[tuple[str, str]]
) -> None:
    ranks.launch(_train, count, (tmp_path, cases))
    for rule, launches in cases:
        alone = run_in(tmp_path / f"{rule}-{launches}-host", rule, "single")
        wanted = fitted(alone, khop.Graph(alone.graph.store, alone.graph.features))
        out = tmp_path / f"{rule}-{launches}"
        assert losses(out) == pytest.approx(losses(alone.out), abs=1e-12)
        for rank in range(count):
            for a, b in zip(torch.load(out / f"weights-{rank}.pt"), wanted, strict=True):
                torch.testing.assert_close(a, b, rtol=0, atol=1e-12)
