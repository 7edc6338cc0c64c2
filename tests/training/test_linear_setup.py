"""A run records how it computes layers, and reports if it computes in another order after it was resumed.

TF32 is switched on for the steps of a run alone, single and recorded ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import khop
from khop.batch import Batch
from khop.kernels import linear_choice
from khop.kernels.linear_blocks import Blocks
from khop.kernels.linear_choice import CHOICES
from khop.training import linear_setup
from khop.training.linear_setup import fix_linear, linear_ways, products
from khop.training.settings import Precision, TrainerSettings
from support.recorded_runs import RecordedRun, as_device, late_losses
from support.small_runs import SmallRun


@pytest.fixture
def choosing(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The rule decides, as outside of tests, on a processor without AVX-512 and bfloat16."""
    monkeypatch.setattr(CHOICES, "is_fixed", False)
    monkeypatch.setattr(linear_choice, "is_onednn_faster", lambda: False)
    for module in (linear_choice, linear_setup):
        monkeypatch.setattr(module, "has_bfloat16_instructions", lambda: False)


def ways(
    recorded: Mapping[str, str], precision: Precision = "float32", device: str = "cpu"
) -> tuple[Mapping[str, str], list[str]]:
    warnings = list[str]()
    settings = TrainerSettings(epochs=1, precision=precision, device=device)
    return linear_ways(settings, recorded, warnings.append), warnings


@pytest.mark.parametrize("precision", ["float32", "float64", "bfloat16"])
def test_a_resumed_run_has_the_ways_of_its_checkpoint(choosing: None, precision: Precision) -> None:
    recorded, _ = ways({}, precision)
    found, warnings = ways(recorded, precision)
    assert found == recorded != {}
    assert not any("sum in another order" in warning for warning in warnings)


def test_on_another_processor_a_warning_names_the_other_order(choosing: None) -> None:
    found, warnings = ways({"float32": "onednn:2048"})
    assert found == {"float32": "torch"}
    assert len(warnings) == 1
    assert "sum in another order" in warnings[0]


def test_bfloat16_without_instructions_says_in_one_line_that_it_loses(choosing: None) -> None:
    found, (warning,) = ways({}, "bfloat16")
    assert found == {"float32": "torch", "bfloat16": "blas-float32:2048"}
    assert warning.startswith("precision bfloat16: this processor multiplies it in float32")
    assert "\n" not in warning


def test_nothing_is_recorded_for_another_device_or_a_fixed_way(choosing: None) -> None:
    assert ways({}, device="meta") == ({}, [])
    with CHOICES.fixed(None):
        assert ways({}) == ({}, [])


def test_a_way_is_fixed_by_name() -> None:
    with CHOICES.fixed(None):
        for name in ("blas:256", None):
            fix_linear(name)
            assert CHOICES.blocks(torch.float64) == Blocks("blas", 256)
        with pytest.raises(ValueError, match="KHOP_LINEAR 'fast': must be torch, or a library"):
            fix_linear("fast")


def test_a_checkpoint_keeps_the_ways(tmp_path: Path, choosing: None) -> None:
    SmallRun(tmp_path).with_(epochs=1).trainer().fit()
    trainer = SmallRun(tmp_path).with_(epochs=2).trainer()
    trainer.resume()
    assert trainer.state.linear == {"float32": "torch"}


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


def test_products_leave_what_torchs_newer_interface_has_set() -> None:
    matmul = torch.backends.cuda.matmul
    before = matmul.fp32_precision
    matmul.fp32_precision = "ieee" if before == "tf32" else "tf32"
    try:
        wanted = matmul.fp32_precision
        with products("float32"):
            assert matmul.fp32_precision == wanted
        with products("tf32"):
            assert matmul.fp32_precision == "tf32"
        assert matmul.fp32_precision == wanted
    finally:
        matmul.fp32_precision = before


class Noting(nn.Module):
    """A model that notes the precision of products in its forward passes, also while they are recorded."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner
        self.seen: list[str] = []

    def forward(self, batch: Batch) -> Tensor:
        self.seen.append(torch.get_float32_matmul_precision())
        found: Tensor = self.inner(batch)
        return found


@pytest.mark.skipif(torch.cuda.is_available(), reason="scripts/gpu-contact looks at the kernels on a GPU")
@pytest.mark.parametrize("launches", ["single", pytest.param("recorded", marks=pytest.mark.long)])
def test_steps_are_in_tf32_from_the_recording_on_and_evaluation_is_not(tmp_path: Path, launches: str) -> None:
    made: list[Noting] = []
    run = RecordedRun(tmp_path).with_(epochs=1, precision="float32", launches=launches)
    object.__setattr__(run.settings, "precision", "tf32")  # which a run on the CPU refuses

    def model() -> nn.Module:
        made.append(Noting(khop.models.SAGE.for_graph(run.graph.store, 8)))
        return made[0]

    scored: list[str] = []

    def evaluate() -> Mapping[str, float]:
        scored.append(torch.get_float32_matmul_precision())
        return {"val": 0.0}

    made_by = replace(run, model=model)
    with as_device() if launches == "recorded" else late_losses():
        graph = khop.Graph(run.graph.store, run.graph.features)
        trainer = made_by.trainer() if launches == "recorded" else made_by.on(graph)
        trainer.evaluate = evaluate
        trainer.fit()
    assert type(trainer._steps).__name__ == ("RecordedSteps" if launches == "recorded" else "EagerSteps")
    assert set(made[0].seen) == {"high"}
    assert scored == ["highest"]
