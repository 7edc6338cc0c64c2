"""A run computes its layers in one way on all ranks of equal machines, also after it was resumed.

TF32 is switched on for a run alone.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from khop.distributed.processes.group import Group
from khop.kernels.linear_blocks import Blocks
from khop.kernels.linear_choice import CHOICES, LayerKind, LinearChoices, Measured, Shape
from khop.models.layer import Layer, LayerOptions
from khop.training.linear_setup import fix_linear, products, settle_linear
from khop.training.settings import Precision, TrainerSettings
from support.small_runs import SmallRun

FIRST, SECOND = Measured(Blocks("blas", 2048)), Measured(Blocks("blas", 1024))
MODEL = Layer(nn.Identity(), (), LayerOptions())


class Finding:
    """A measurement that finds one way, and counts its calls."""

    def __init__(self, found: Measured) -> None:
        self.found = found
        self.calls = 0

    def __call__(self, dtype: torch.dtype, shape: Shape, float32: Blocks | None) -> Measured:
        self.calls += 1
        return self.found


@dataclass
class Meeting:
    """Ranks that are threads of this process."""

    count: int
    values: dict[int, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.barrier = threading.Barrier(self.count, timeout=30)


@dataclass(frozen=True)
class ThreadGroup(Group):
    """Gathers among threads."""

    meeting: Meeting = field(default_factory=lambda: Meeting(1))

    def gather(self, values: Tensor) -> Tensor:
        """(ranks, ...)"""
        self.meeting.values[self.rank] = values
        self.meeting.barrier.wait()
        found = torch.stack([self.meeting.values[rank] for rank in range(self.world_size)])
        self.meeting.barrier.wait()
        return found


def without_folder() -> Path:
    raise RuntimeError("Could not determine home directory.")


def settled(
    measure: Finding,
    recorded: Mapping[str, Any],
    precision: Precision = "float32",
    group: Group | None = None,
) -> tuple[Mapping[str, Any], LinearChoices, list[str]]:
    choices, warnings = LinearChoices(without_folder, measure), list[str]()
    settings = TrainerSettings(epochs=1, precision=precision)
    record = settle_linear(group or Group(), MODEL, settings, recorded, warnings.append, choices)
    return record, choices, warnings


def way_of(choices: LinearChoices, dtype: torch.dtype = torch.float32) -> Blocks | None:
    return choices.blocks(dtype, 256, may_measure=False)


def test_a_resumed_run_takes_the_way_it_went_before_without_measuring() -> None:
    recorded, choices, warnings = settled(Finding(FIRST), {})
    assert way_of(choices) == FIRST.blocks
    assert warnings == []
    again = Finding(SECOND)
    resumed, choices, warnings = settled(again, json.loads(json.dumps(recorded)))
    assert way_of(choices) == FIRST.blocks
    assert (resumed, warnings, again.calls) == (recorded, [], 0)


def test_on_another_machine_a_warning_names_the_other_computation(monkeypatch: pytest.MonkeyPatch) -> None:
    recorded, _, _ = settled(Finding(FIRST), {})
    with monkeypatch.context() as patched:
        patched.setattr("khop.kernels.linear_choice.processor", lambda: "another processor")
        moved, choices, warnings = settled(Finding(SECOND), recorded)
        assert way_of(choices) == SECOND.blocks
        assert len(warnings) == 1
        assert "the order of sums differs here" in warnings[0]
        _, _, warnings = settled(Finding(FIRST), recorded)
        assert warnings == []  # it goes the same way there
    _, choices, warnings = settled(Finding(SECOND), moved)
    assert way_of(choices) == FIRST.blocks  # back on the first machine
    assert warnings == []


@pytest.mark.parametrize("damage", [7, {}, {"blocks": {"library": "magic"}, "over_float32": 1.0}])
def test_a_record_that_means_nothing_is_measured_anew(damage: object) -> None:
    number = f"{LayerKind.here(torch.float32, 'wide').number:015x}"
    _, choices, _ = settled(Finding(SECOND), {number: damage})
    assert way_of(choices) == SECOND.blocks


def test_one_rank_of_a_machine_measures_and_all_go_its_way() -> None:
    meeting = Meeting(3)
    measures = [Finding(FIRST), Finding(SECOND), Finding(SECOND)]
    found: dict[int, tuple[Mapping[str, Any], LinearChoices, list[str]]] = {}

    def work(rank: int) -> None:
        found[rank] = settled(measures[rank], {}, group=ThreadGroup(rank, 3, rank, 3, meeting=meeting))

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [way_of(found[rank][1]) for rank in range(3)] == [FIRST.blocks] * 3
    assert [found[rank][0] for rank in range(3)] == [found[0][0]] * 3
    assert [measure.calls for measure in measures] == [2, 0, 0]


@pytest.mark.parametrize(("ratio", "is_told"), [(1.4, True), (1.0, False), (0.6, False)])
def test_bfloat16_says_in_one_line_that_it_loses(ratio: float, is_told: bool) -> None:
    _, _, warnings = settled(Finding(Measured(None, ratio)), {}, "bfloat16")
    assert len(warnings) == is_told
    if is_told:
        assert warnings[0].startswith("precision bfloat16: a layer takes 1.40 x as long as in float32")
        assert "\n" not in warnings[0]


def test_nothing_is_measured_for_another_device_a_fixed_way_or_another_model() -> None:
    measure = Finding(FIRST)
    choices = LinearChoices(without_folder, measure)
    cpu = TrainerSettings(epochs=1)
    warned = pytest.fail
    assert settle_linear(Group(), MODEL, replace(cpu, device="meta"), {}, warned, choices) == {}
    assert settle_linear(Group(), nn.Linear(2, 2), cpu, {}, warned, choices) == {}
    with choices.fixed(FIRST.blocks):
        assert settle_linear(Group(), MODEL, cpu, {}, warned, choices) == {}
    assert measure.calls == 0


def test_a_way_is_fixed_by_name() -> None:
    with CHOICES.fixed(None):
        fix_linear("blas:256")
        assert CHOICES.blocks(torch.float64, 8, may_measure=True) == Blocks("blas", 256)
        fix_linear(None)
        assert CHOICES.blocks(torch.float64, 8, may_measure=True) == Blocks("blas", 256)
        with pytest.raises(ValueError, match="KHOP_LINEAR 'fast': must be torch, or a library"):
            fix_linear("fast")


@pytest.fixture
def choosing(monkeypatch: pytest.MonkeyPatch) -> Finding:
    """The process's choices, not fixed, with nothing known."""
    measure = Finding(FIRST)
    monkeypatch.setattr(CHOICES, "is_fixed", False)
    monkeypatch.setattr(CHOICES, "_folder", without_folder)
    monkeypatch.setattr(CHOICES, "_measure", measure)
    monkeypatch.setattr(CHOICES, "_settled", {})
    return measure


def test_a_checkpoint_keeps_the_way_and_one_from_before_still_opens(
    tmp_path: Path, choosing: Finding
) -> None:
    run = SmallRun(tmp_path).with_(epochs=1)
    run.trainer().fit()
    trainer = run.with_(epochs=2).trainer()
    trainer.resume()
    recorded = trainer.state.linear
    assert {entry["layers"] for entry in recorded.values()} == {"float32 narrow", "float32 wide"}
    choosing.found = SECOND
    CHOICES._settled.clear()
    calls = choosing.calls
    trainer.fit()
    assert way_of(CHOICES) == FIRST.blocks
    assert trainer.state.linear == recorded
    assert choosing.calls == calls


def _fail(expected: str) -> None:
    assert torch.get_float32_matmul_precision() == expected
    torch.mm(torch.ones(2, 3), torch.ones(2, 3))


def test_products_are_in_tf32_within_the_block_only() -> None:
    before = torch.get_float32_matmul_precision()
    with products("float32"):
        assert torch.get_float32_matmul_precision() == before
    with pytest.raises(RuntimeError, match="mat1 and mat2"), products("tf32"):
        _fail("high")
    assert torch.get_float32_matmul_precision() == before
