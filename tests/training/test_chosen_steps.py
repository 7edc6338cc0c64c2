"""Steps are recorded where that is possible; else a warning says why."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
from torch import nn

import khop
from khop.batch import Batch
from khop.loading.device.batch_slot import BatchSlot
from khop.training.recorded_steps import CapturedSteps, RecordedSteps
from khop.training.step_clock import Unwatched
from khop.training.steps import EagerSteps
from khop.training.trainer import Trainer
from support.edge_index_layer import Convolution
from support.recorded_runs import RecordedRun, as_device
from support.recorders import NoStreams

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the CPU has no kernels beside a GPU")


class Warned(Unwatched):
    """An observer that keeps warnings."""

    def __init__(self) -> None:
        self.sentences: list[str] = []

    def warned(self, sentence: str) -> None:
        self.sentences.append(sentence)


@pytest.mark.long
@pytest.mark.parametrize(
    ("topology", "columns", "reason"),
    [
        ("host", "device", "the CPU draws the neighbors; place the edges"),
        ("device", "host", "the CPU reads the columns ['x', 'y']; place them"),
    ],
)
def test_a_run_that_cannot_be_recorded_says_why(
    tmp_path: Path, topology: str, columns: str, reason: str
) -> None:
    watched = Warned()
    run = RecordedRun(tmp_path, topology=topology, columns=columns, observer=watched)
    with as_device():
        trainer = run.trainer()
        trainer._begin("recorded")
    assert isinstance(trainer._steps, EagerSteps)
    (sentence,) = watched.sentences
    assert sentence.startswith(f"steps are launched one by one, not recorded: {reason}")


@pytest.mark.long
def test_a_step_that_waits_for_the_device_is_not_recorded(tmp_path: Path) -> None:
    watched = Warned()

    run = RecordedRun(tmp_path, observer=watched)
    with as_device(), patch.object(CapturedSteps, "_of_slot", _waits):
        trainer = run.trainer()
        trainer._begin("recorded")
    assert isinstance(trainer._steps, EagerSteps)
    assert (
        "recording the step failed: operation not permitted when stream is capturing" in watched.sentences[0]
    )
    assert "and more" not in watched.sentences[0]


def _waits(steps: CapturedSteps, slot: BatchSlot) -> None:
    raise RuntimeError("operation not permitted when stream is capturing\nand more")


@pytest.mark.long
def test_a_model_that_reads_the_ends_of_edges_takes_single_launches(tmp_path: Path) -> None:
    watched = Warned()
    layers = [Convolution(7, 6), Convolution(6, 3)]
    run = RecordedRun(tmp_path, observer=watched, model=lambda: khop.models.Sequential(layers))
    with as_device():
        trainer = run.trainer()
        trainer._begin("recorded")
    assert isinstance(trainer._steps, EagerSteps)
    assert watched.sentences == [
        "steps are launched one by one, not recorded: recording the step failed: "
        'edge_index: a static shape has unused edges; set launches="single"'
    ]


class Counting(nn.Module):
    """A model that counts its forward passes."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner
        self.register_buffer("passes", torch.tensor(0))

    def forward(self, batch: Batch) -> object:
        self.passes += 1
        return self.inner(batch)


def test_a_model_that_changes_a_buffer_takes_single_launches(tmp_path: Path) -> None:
    """Recording runs it on a padded batch, which leaves no trace."""
    watched = Warned()
    run = RecordedRun(tmp_path, observer=watched)
    graph = run.graph
    run = replace(run, model=lambda: Counting(khop.models.SAGE.for_graph(graph.store, 16)))

    def recorder(self: NoStreams, stream: object) -> Callable[[Callable[[], None]], Callable[[], None]]:
        return lambda launches: (launches(), launches)[1]

    with as_device(), patch.object(NoStreams, "recorder", recorder):
        trainer = run.trainer()
        trainer._begin("recorded")
    assert isinstance(trainer._steps, EagerSteps)
    assert int(trainer.model.passes) == 0  # type: ignore[arg-type]
    assert watched.sentences == [
        "steps are launched one by one, not recorded: the forward pass changes buffers of the model "
        "(passes), and recorded batches are padded"
    ]


def choice_of(run: RecordedRun) -> tuple[Trainer, list[str]]:
    """The trainer of a run on a device that leaves the choice open, and what its observer is told."""
    watched = Warned()
    with as_device():
        trainer = replace(run, observer=watched).with_(launches="auto").trainer()
        object.__setattr__(trainer.settings, "device", "cuda")  # which the CPU stands for
        trainer._begin(trainer.settings.launches)
    return trainer, watched.sentences


def test_steps_are_recorded_where_that_applies_and_a_line_says_so(tmp_path: Path) -> None:
    trainer, sentences = choice_of(RecordedRun(tmp_path / "recorded"))
    assert isinstance(trainer._steps, RecordedSteps)
    assert sentences == ["steps are recorded as CUDA graphs; --launches single launches them one by one"]
    trainer, sentences = choice_of(RecordedRun(tmp_path / "host", topology="host"))
    assert isinstance(trainer._steps, EagerSteps)
    assert sentences[0].startswith("steps are launched one by one, not recorded: the CPU draws")


@pytest.mark.long
def test_dropout_of_torch_is_recorded_on_request_alone(tmp_path: Path) -> None:
    run = RecordedRun(tmp_path)

    def model() -> nn.Module:
        return WithDropout(khop.models.SAGE.for_graph(run.graph.store, 8))

    trainer, (sentence,) = choice_of(replace(run, model=model))
    assert isinstance(trainer._steps, EagerSteps)
    assert "dropout (Dropout) would draw other random numbers in a resumed run; " in sentence


class WithDropout(nn.Module):
    """A model with dropout of torch."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner, self.dropout = inner, nn.Dropout(0.5)

    def forward(self, batch: Batch) -> torch.Tensor:
        found: torch.Tensor = self.dropout(self.inner(batch))
        return found


class OwnLoader:
    """A loader from outside."""

    def __len__(self) -> int:
        return 3

    def epoch(self, epoch: int) -> Iterator[Batch]:
        yield from ()

    def state_dict(self) -> dict[str, object]:
        return {}

    def load_state_dict(self, state: object) -> None:
        pass


def test_other_loaders_have_no_static_shapes(tmp_path: Path) -> None:
    watched = Warned()
    trainer = RecordedRun(tmp_path, observer=watched).on_cpu()
    trainer.loader = OwnLoader()
    trainer._begin("recorded")
    (sentence,) = watched.sentences
    assert "OwnLoader has no batches with static shapes; use khop.Loader" in sentence
