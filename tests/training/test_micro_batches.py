"""Micro-batches: their gradients add up to that of the step, on any number of ranks, and after a resume."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

import khop
from khop.loading.source import StepRequests
from khop.run.build import Run, prepare
from khop.run.read import RawRun
from khop.sampling.seeds import NodeSeeds, SeedOrder
from khop.training.run_log import Record
from khop.training.step_clock import Unwatched
from support.small_labeled import write_labeled_graph
from support.small_link_folders import write_shop
from support.small_runs import without_seconds

LINKS = {"kind": "link-prediction", "target": "user buys item"}
RUNS: Mapping[str, tuple[Callable[[Path], Path], Mapping[str, object]]] = {
    "nodes": (write_labeled_graph, {"task": {"label": "kind", "class_weights": "balanced"}}),
    "edges": (write_labeled_graph, {"task": {"kind": "edge-regression", "label": "weight"}}),
    "links": (
        write_shop,
        {
            "task": LINKS,
            "links": {"loss": {"kind": "infonce"}, "negatives_group": 10, "eval_negatives": 3},
            "model": {"hidden": 8, "dropout": 0.0, "embedding": 4, "embedding_update": "sparse"},
            "optimizer": {"clip_norm": 0.2},
        },
    ),
}


def run_of(name: str, folder: Path, micro_batches: int) -> Run:
    write, tables = RUNS[name]
    graph = folder / name
    values: dict[str, object] = {
        "graph": str(graph if graph.exists() else write(graph)),
        "precision": "float64",
        "model": {"hidden": 8, "dropout": 0.0},
        "sampler": {"fanouts": [3, 2]},
        "training": {"epochs": 2, "batch_size": 50, "learning_rate": 0.01, "micro_batches": micro_batches},
        **tables,
    }
    return prepare(RawRun(values, "run.toml"), folder)


def gradients(run: Run, epoch: int) -> list[dict[str, Tensor]]:
    """The gradient of each step of an epoch, and of the rows that are read."""
    model, found = run.model, []
    tables = [module for module in model.modules() if isinstance(module, khop.models.NodeEmbedding)]
    for batch in run.loader().epoch(epoch):
        batch.global_mean(run.task.losses(model(batch), batch)).backward()
        if batch.ends_step:
            rows = {f"rows {at}": table.take_gradients()[1] for at, table in enumerate(tables)}
            found.append(
                {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None} | rows
            )
            model.zero_grad()
    return found


@pytest.mark.core(1)
@pytest.mark.parametrize("name", RUNS)
@pytest.mark.parametrize("micro_batches", [7, pytest.param(60, marks=pytest.mark.long)])
def test_the_gradient_is_that_of_the_step(name: str, micro_batches: int, tmp_path: Path) -> None:
    whole, split = (run_of(name, tmp_path, count) for count in (1, micro_batches))
    assert len(whole.loader()) == len(split.loader())
    for expected, found in zip(gradients(whole, 1), gradients(split, 1), strict=True):
        assert expected.keys() == found.keys()
        for key, of_step in expected.items():
            torch.testing.assert_close(found[key], of_step, rtol=1e-9, atol=1e-12, msg=key)


class Stopping(Unwatched):
    """Stops the run after the second update of the second epoch, as Ctrl-C does."""

    def stepped(self, epoch: int, step: int, loss: float) -> None:
        if (epoch, step) == (1, 1):
            raise KeyboardInterrupt


@pytest.mark.long
@pytest.mark.parametrize("name", RUNS)
def test_the_course_is_the_same_also_after_a_resume_with_other_micro_batches(
    name: str, tmp_path: Path
) -> None:
    def course(folder: str, *counts: int) -> list[Record]:
        """Train with the first number of micro-batches, stop, and go on with the next one."""
        out = tmp_path / folder
        out.mkdir()
        first, *others = counts
        trainer = run_of(name, tmp_path, first).trainer(out, Stopping() if others else Unwatched())
        for count in others:
            with pytest.raises(KeyboardInterrupt):
                trainer.fit()
            trainer = run_of(name, tmp_path, count).trainer(out, Unwatched())
            trainer.resume()
        return without_seconds(trainer.fit().records)

    expected = course("whole", 1)
    for folder, counts in (("split", (3,)), ("resumed", (3, 2))):
        assert course(folder, *counts) == [pytest.approx(record, rel=1e-9) for record in expected]


def test_micro_batches_divide_the_share_of_each_rank_in_order() -> None:
    seeds = NodeSeeds({"item": torch.arange(100, 153)})
    for rank in range(3):
        whole = SeedOrder(seeds, 20, shuffle=True, rank=rank, world_size=3)
        split = replace(whole, micro_batches=4)
        assert split.num_batches == 4 * split.num_steps == 12
        requests = StepRequests(split, 2, range(split.num_batches))
        for step in range(split.num_steps):
            parts = [request.seeds() for request in requests[4 * step : 4 * step + 4]]
            assert {request.key for request in requests[4 * step : 4 * step + 4]} == {requests[4 * step].key}
            expected = whole.share(2, step)
            assert (
                torch.cat([part.nodes["item"] for part in parts]).tolist() == expected.nodes["item"].tolist()
            )
            sizes = [part.nodes["item"].numel() for part in parts]
            assert max(sizes) - min(sizes) <= 1
            for part in parts:
                assert part.batch_nodes is not None
                assert part.batch_nodes["item"].numel() == split.num_global_seeds(step)


def test_a_loader_saves_its_position_behind_whole_steps(tmp_path: Path) -> None:
    graph = khop.open_graph(write_labeled_graph(tmp_path / "graph"))

    def loader() -> khop.Loader:
        return khop.Loader(khop.NeighborSampler(graph, [2]), torch.arange(30), 10, micro_batches=3)

    first = loader()
    batches = iter(first)
    states, ends = [], []
    for _ in range(4):
        ends.append(next(batches).ends_step)
        states.append((first.state_dict()["epoch"], first.state_dict()["step"]))
    assert ends == [False, False, True, False]
    assert states == [(0, 0), (0, 0), (0, 1), (0, 1)]
    again = loader()
    again.load_state_dict(first.state_dict())
    rest = [(batch.step, batch.micro_batch) for batch in again]
    assert rest == [(step, part) for step in (1, 2) for part in range(3)]
    assert first.batch(0, 0).seeds.tolist() == list(range(10))


def test_micro_batches_must_be_a_count() -> None:
    with pytest.raises(ValueError, match="micro_batches 0: must be a whole number, 1 or more"):
        SeedOrder(NodeSeeds({"item": torch.arange(3)}), 2, micro_batches=0)
