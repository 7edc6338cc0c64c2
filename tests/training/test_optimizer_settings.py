"""Any optimizer of torch without closures trains, resumes exactly, and clips the norm of all gradients.

One optimizer for weights and rows: each part takes its own steps, and its state comes back.

The learning rate rises and falls as it was told to, also over a stop.
"""

from __future__ import annotations

import time
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from khop.distributed.processes.group import ALONE, Group, this_group
from khop.models.node_embedding import NodeEmbedding
from khop.training.checkpoint import load_checkpoint
from khop.training.gradients import BucketAverage, GradientClock, averaging, broadcast
from khop.training.optimizer_settings import (
    ModelOptimizer,
    OptimizerSettings,
    Plateau,
    RowAdam,
    Schedule,
    clip_gradients,
    square_sum,
)
from khop.training.settings import TrainerSettings
from support.covered import covered
from support.small_runs import STEPS, Interrupting, SmallRun, without_seconds
from support.started_ranks import StartedRanks

KINDS = {
    "AdamW": {"betas": (0.8, 0.9)},
    "SGD": {"momentum": 0.9, "nesterov": True},
    "RMSprop": {"centered": True},
    "Adagrad": {},
    "Adamax": {},
    "NAdam": {},
    "Rprop": {},
    "Adafactor": {},
}


@pytest.mark.long
@pytest.mark.parametrize("name", KINDS)
def test_a_run_that_was_stopped_continues_with_the_same_losses(tmp_path: Path, name: str) -> None:
    settings = OptimizerSettings(getattr(torch.optim, name), KINDS[name], clip_norm=0.5)
    whole = SmallRun(tmp_path / "a").with_(optimizer=settings, epochs=2)
    expected = whole.trainer().fit().records
    stopped = SmallRun(tmp_path / "b", observer=Interrupting(1, 1)).with_(optimizer=settings, epochs=2)
    with pytest.raises(KeyboardInterrupt):
        stopped.trainer().fit()
    again = SmallRun(tmp_path / "b").with_(optimizer=settings, epochs=2).trainer()
    again.resume()
    assert without_seconds(again.fit().records) == without_seconds(expected)


def test_the_optimizer_is_torchs_with_the_settings_of_the_run() -> None:
    parameters = [torch.nn.Parameter(torch.ones(2))]
    made = OptimizerSettings(torch.optim.AdamW, {"betas": (0.5, 0.6)}).over(parameters, 0.1, 0.2)
    assert isinstance(made, torch.optim.AdamW)
    (group,) = made.param_groups
    assert (group["lr"], group["weight_decay"], group["betas"]) == (0.1, 0.2, (0.5, 0.6))


@pytest.mark.parametrize(
    ("kind", "given", "sentence"),
    [
        (torch.optim.LBFGS, {}, "optimizer LBFGS: evaluates the loss several times per step"),
        (torch.optim.SparseAdam, {}, "optimizer SparseAdam: weights have dense gradients"),
        (torch.nn.Linear, {}, "must be a class of torch.optim"),
        ("Adam", {}, "optimizer 'Adam': must be a class of torch.optim"),
        (
            torch.optim.SGD,
            {"options": {"lr": 1.0}},
            "optimizer option 'lr': set the learning rate of the run",
        ),
        (torch.optim.SGD, {"options": {"speed": 1.0}}, "optimizer SGD with options .*speed"),
        (torch.optim.SGD, {"options": {"momentum": -1.0}}, "optimizer SGD with options .*: Invalid momentum"),
        (torch.optim.SGD, {"clip_norm": 0}, "clip_norm 0: must be above 0"),
    ],
)
def test_what_cannot_train_is_named(kind: Any, given: dict[str, Any], sentence: str) -> None:  # noqa: ANN401
    with pytest.raises(ValueError, match=sentence):
        OptimizerSettings(kind, **given)


def test_options_of_numpy_and_torch_are_numbers_in_a_checkpoint(tmp_path: Path) -> None:
    options = {"eps": np.float32(0.5), "betas": (torch.tensor(0.5), np.float64(0.25))}
    settings = OptimizerSettings(torch.optim.Adam, options)
    run = SmallRun(tmp_path).with_(optimizer=settings, epochs=1)
    run.trainer().fit()
    (group,) = load_checkpoint(tmp_path / "checkpoints" / "last").groups
    assert (group["eps"], group["betas"]) == (0.5, [0.5, 0.25])
    run.trainer().resume()


def test_weight_decay_needs_an_optimizer_that_has_it() -> None:
    with pytest.raises(ValueError, match=r"weight_decay 0.1: Rprop has none; set it to 0"):
        TrainerSettings(epochs=1, weight_decay=0.1, optimizer=OptimizerSettings(torch.optim.Rprop))


def test_clipped_gradients_have_the_norm_of_the_limit_and_smaller_ones_stay() -> None:
    dense = torch.tensor([3.0, 0.0])
    at, values = torch.tensor([[1]]), torch.tensor([[4.0]])
    rows = torch.sparse_coo_tensor(at, values, (3, 1), is_coalesced=True, check_invariants=True)
    square = square_sum([dense, rows])
    assert square == 25.0
    clip_gradients([dense, rows], square, 6.0)
    assert dense.tolist() == [3.0, 0.0]
    clip_gradients([dense, rows], square, 2.5)
    assert dense.tolist() == [1.5, 0.0]
    assert rows.to_dense()[1].tolist() == [2.0]


class OnGpu(torch.Tensor):
    """A tensor that says it is on a GPU."""

    device = torch.device("cuda", 0)


def test_weights_are_updated_by_one_kernel_unless_told_otherwise() -> None:
    on_gpu, on_cpu = [OnGpu([1.0])], [torch.ones(1)]
    for parameters in (on_gpu, on_cpu):
        assert OptimizerSettings()._fused(parameters) == {"fused": True}
        assert OptimizerSettings(options={"foreach": True})._fused(parameters) == {}
        assert OptimizerSettings(torch.optim.Adadelta)._fused(parameters) == {}
    assert OptimizerSettings()._fused([]) == OptimizerSettings()._fused([*on_gpu, *on_cpu]) == {}
    assert OptimizerSettings(torch.optim.SGD)._fused(on_cpu) == {}  # takes sparse gradients, unless fused


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.AdamW])
def test_updates_of_the_cpu_are_those_of_a_plain_optimizer_in_any_order_of_memory(
    kind: type[torch.optim.Optimizer],
) -> None:
    start, gradient = torch.randn(3, 5), torch.randn(5, 3)
    for transposed in (False, True):
        updated = []
        for options in ({}, {"foreach": False}):
            weight = nn.Parameter(start.clone().t() if transposed else start.t().contiguous())
            optimizer = OptimizerSettings(kind, options).over([weight], 0.1, 0.01)
            for factor in (1.0, -0.5, 3.0):
                weight.grad = gradient * factor  # contiguous, as khop's sums over ranks are
                optimizer.step()
            updated.append(weight.detach().clone())
        torch.testing.assert_close(*updated, rtol=1e-6, atol=1e-7)


class Model(nn.Module):
    """Rows of nodes and a layer over them."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.rows = NodeEmbedding(6, 3, "sparse")
        self.layer = nn.Linear(3, 2)
        self.frozen = nn.Parameter(torch.ones(2), requires_grad=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.layer(self.rows(ids)) * self.frozen
        return out


def step(model: Model, optimizer: ModelOptimizer, ids: list[int]) -> None:
    optimizer.zero_grad()
    model(torch.tensor(ids)).square().sum().backward()
    optimizer.exchange()
    optimizer.step()


def test_weight_decay_is_for_parameters_alone() -> None:
    model = Model()
    rows, optimizer = model.rows.weight.detach().clone(), ModelOptimizer(model, 0.1, 0.5)
    step(model, optimizer, [0, 1])
    assert torch.equal(model.rows.weight[2:], rows[2:])
    assert not torch.equal(model.rows.weight[:2], rows[:2])
    assert [len(group["params"]) for group in optimizer.param_groups] == [2, 1]
    assert [group.get("weight_decay") for group in optimizer.param_groups] == [0.5, None]


def test_a_loaded_state_continues_as_before() -> None:
    model, again = Model(), Model()
    optimizer, restored = ModelOptimizer(model, 0.1, 0.0), ModelOptimizer(again, 0.1, 0.0)
    step(model, optimizer, [0, 1, 1])
    again.load_state_dict(model.state_dict())
    numbers = {p: n for n, p in enumerate(p for group in optimizer.param_groups for p in group["params"])}
    groups = [{**g, "params": [numbers[p] for p in g["params"]]} for g in optimizer.param_groups]
    state = {numbers[parameter]: deepcopy(of) for parameter, of in optimizer.state.items()}
    restored.load_state_dict({"state": state, "param_groups": groups})
    for ids in ([1, 2], [5]):
        step(model, optimizer, ids)
        step(again, restored, ids)
    for own, other in zip(model.parameters(), again.parameters(), strict=True):
        assert torch.equal(own, other)


def test_without_rows_there_is_adam_alone() -> None:
    layer = nn.Linear(2, 2)
    optimizer = ModelOptimizer(layer, 0.1, 0.0)
    assert [type(part) for part in optimizer.parts] == [torch.optim.Adam]
    optimizer.exchange()


def test_a_model_of_embeddings_alone_has_row_adam_alone() -> None:
    table = NodeEmbedding(4, 2, "sparse")
    before, optimizer = table.weight.detach().clone(), ModelOptimizer(table, 0.1, 0.0)
    assert [type(part) for part in optimizer.parts] == [RowAdam]
    table(torch.tensor([1])).sum().backward()
    optimizer.exchange()
    optimizer.step()
    assert (table.weight != before).any(1).tolist() == [False, True, False, False]


def test_a_model_without_anything_to_train_is_refused() -> None:
    with pytest.raises(ValueError, match=r"no parameter that requires gradients.* requires_grad_\(True\)"):
        ModelOptimizer(nn.Linear(2, 2).requires_grad_(False), 0.1, 0.0)


def rates(schedule: Schedule, updates: int) -> list[float]:
    optimizer = torch.optim.Adam([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    over = schedule.over(optimizer, updates)
    found = []
    for _ in range(updates):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        over.step()
    return found


def test_it_rises_over_the_warm_up_and_falls_to_the_end() -> None:
    assert rates(Schedule(), 3) == [1.0, 1.0, 1.0]
    assert rates(Schedule("linear"), 4) == [1.0, 0.75, 0.5, 0.25]
    assert rates(Schedule("constant", warmup=3), 5) == [0.25, 0.5, 0.75, 1.0, 1.0]
    assert rates(Schedule("cosine", warmup=1), 5) == pytest.approx(
        [0.5, 1.0, 0.853553, 0.5, 0.146447], abs=1e-6
    )
    assert rates(Schedule("linear", warmup=5), 2) == pytest.approx([1 / 6, 2 / 6])


@pytest.mark.long
def test_a_run_that_was_stopped_continues_with_the_rate_that_was_next(tmp_path: Path) -> None:
    schedule = Schedule("cosine", warmup=4)
    whole = SmallRun(tmp_path / "a").with_(schedule=schedule)
    trainer = whole.trainer()
    expected = trainer.fit().records
    stopped = SmallRun(tmp_path / "b", observer=Interrupting(1, 2)).with_(schedule=schedule)
    with pytest.raises(KeyboardInterrupt):
        stopped.trainer().fit()
    again = SmallRun(tmp_path / "b").with_(schedule=schedule).trainer()
    again.resume()
    assert again.optimizer.param_groups[0]["lr"] == 0.01 * schedule.factor(3 * STEPS, STEPS + 3)
    assert without_seconds(again.fit().records) == without_seconds(expected)
    constant = SmallRun(tmp_path / "c").trainer().fit().records
    assert without_seconds(constant) != without_seconds(expected)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"course": "step"}, "course 'step': must be one of"),
        ({"warmup": -1}, "warmup -1: must be 0 or more updates"),
    ],
)
def test_what_is_no_schedule_is_named(given: dict[str, object], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        Schedule(**given)  # type: ignore[arg-type]


def test_a_plateau_reduces_the_rate_while_the_score_does_not_improve(tmp_path: Path) -> None:
    scores = [0.5, 0.4, 0.5, 0.6, 0.6, 0.6, 0.1]
    seen: list[float] = []

    def run(name: str, epochs: int) -> SmallRun:
        def evaluate() -> dict[str, float]:
            score = scores[trainer.state.epoch]
            seen.append(trainer.optimizer.param_groups[0]["lr"])
            return {"val": score}

        small = SmallRun(tmp_path / name, evaluate=evaluate)
        small = small.with_(epochs=epochs, learning_rate=0.08, schedule=Schedule(plateau=Plateau(0.5, 2)))
        trainer = small.trainer()
        if epochs > 4:
            trainer.resume()
        trainer.fit()
        return small

    run("a", 4)
    run("a", 7)
    assert seen == [0.08, 0.08, 0.08, 0.04, 0.04, 0.04, 0.02]


@pytest.mark.parametrize(
    ("given", "sentence"),
    [((1.0, 2), "factor 1.0: must be above 0 and below 1"), ((0.5, 0), "patience 0: must be a whole number")],
)
def test_a_plateau_that_cannot_be_is_named(given: tuple[float, int], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        Plateau(*given)


# Rows that batches read take the steps of torch's SparseAdam; other rows stay as they were.


BATCHES = st.lists(st.lists(st.integers(0, 9), max_size=6), min_size=1, max_size=4)


@given(batches=BATCHES)
def test_rows_take_the_steps_of_sparse_adam(batches: list[list[int]]) -> None:
    table = NodeEmbedding(10, 3, "sparse")
    plain = torch.nn.Embedding(10, 3, sparse=True)
    plain.load_state_dict({"weight": table.weight.detach().clone()})
    own, other = RowAdam(table, lr=0.1), torch.optim.SparseAdam(plain.parameters(), lr=0.1)
    scale = torch.arange(1.0, 4.0)
    for ids in batches:
        rows = torch.tensor(ids, dtype=torch.int64)
        for module, optimizer in ((table, own), (plain, other)):
            optimizer.zero_grad()
            (module(rows) ** 2 * scale).sum().backward()
            optimizer.step()
    torch.testing.assert_close(table.weight, plain.weight)


def test_discarded_gradients_change_nothing() -> None:
    table = NodeEmbedding(4, 2, "sparse")
    before, optimizer = table.weight.detach().clone(), RowAdam(table)
    table(torch.tensor([1, 2])).sum().backward()
    optimizer.zero_grad()
    optimizer.step()
    assert torch.equal(table.weight, before)


def test_a_model_without_such_rows_is_refused() -> None:
    with pytest.raises(ValueError, match=r"no khop\.models\.NodeEmbedding"):
        RowAdam(torch.nn.Linear(2, 2))


# Gradient averaging of one process and of two; tests/processes trains on several ranks.


def test_alone_or_without_gradients_a_model_is_not_wrapped() -> None:
    model, frozen = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2).requires_grad_(False)
    assert averaging(ALONE, model, GradientClock()) is model
    assert averaging(Group(0, 2), frozen, GradientClock()) is frozen


def test_a_wrapped_model_averages_and_notes_when_its_gradients_were_ready(tmp_path: object) -> None:
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        model, clock = torch.nn.Linear(2, 1), GradientClock()
        parallel = averaging(Group(0, 2), model, clock)  # as a rank of two wraps it
        assert isinstance(parallel, DistributedDataParallel)
        parallel(torch.ones(3, 2)).sum().backward()
        assert clock.ready_at is not None
        assert model.weight.grad is not None
        assert model.weight.grad.tolist() == [[3.0, 3.0]]
        # A thread of the group now releases the hook's function, under the GIL. If the group ended first, it
        # would hold the GIL and wait for that thread: torch hangs.
        time.sleep(0.2)
    finally:
        torch.distributed.destroy_process_group()


@covered
def _average(rank: int, device: str) -> None:
    """Average gradients of two dtypes in buckets of one or two of them."""
    group = this_group()
    gradients = [
        torch.full((2, 3), rank + 1.0),
        torch.full((5,), 10.0 * rank),
        torch.full((), 4.0 - rank, dtype=torch.float64),
    ]
    before = list(gradients)
    BucketAverage(group, gradients, bucket_bytes=30).average()
    assert all(a is b for a, b in zip(gradients, before, strict=True))  # in place
    assert gradients[0].eq(1.5).all()
    assert gradients[1].eq(5.0).all()
    assert gradients[2].item() == 3.5
    model = torch.nn.Linear(2, 2)
    torch.nn.init.constant_(model.weight, float(rank))
    broadcast(group, model.parameters())
    assert model.weight.eq(0).all()


def test_gradients_are_averaged_in_buckets_and_weights_are_those_of_rank_0(ranks: StartedRanks) -> None:
    ranks.launch(_average, 2, ())


def test_one_rank_averages_nothing() -> None:
    gradient = torch.ones(3)
    BucketAverage(ALONE, [gradient]).average()
    assert gradient.eq(1).all()
