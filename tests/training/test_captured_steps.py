"""Captured steps have the losses and gradients of ordinary ones, also for batches that exceed a capacity."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
from torch import Tensor, nn

from khop import DrawKey, Graph, NeighborSampler, Seeds
from khop.graph.features.table import FeatureTable
from khop.kernels.linear import AutocastWeights
from khop.loading.columns import ColumnChoice
from khop.loading.device.batch_slot import BatchSlot, StepInput
from khop.loading.device.streams import Event, Stream
from khop.models.sage import SAGE
from khop.sampling.on_device.batch_plan import BatchPlan
from khop.sampling.on_device.device_sampler import measured_capacities
from khop.training.recorded_steps import CapturedSteps
from khop.training.settings import Precision
from khop.training.tasks import NodeClassification
from support.lowered import Lowered
from support.recorders import NoStreams, Passed, recorder, streams
from support.small_graphs import SmallGraph, one_type, shop
from support.triton_rows import DEVICE
from support.triton_segments import by_triton

FANOUTS = [4, 3]
Step = tuple[float, list[Tensor]]


def inputs(small: SmallGraph, node_type: str, sizes: list[int]) -> list[StepInput]:
    count = small.store.num_nodes(node_type)
    made = []
    for number, size in enumerate(sizes):
        ids = torch.randint(count, (size,), generator=torch.Generator().manual_seed(number))
        seeds = Seeds({node_type: ids}, {node_type: torch.arange(size)})
        made.append(StepInput(seeds, DrawKey(number + 1), 1 / size))
    return made


def ordinary(small: SmallGraph, model: nn.Module, task: NodeClassification, given: StepInput) -> Step:
    """Loss and gradients of a step on the CPU."""
    node_type, seeds = next(iter(given.seeds.nodes.items()))
    batch = small.batch(seeds, FANOUTS, node_type, key=given.key)
    model.zero_grad()
    loss = (task.losses(model(batch), batch) * given.weight).sum()
    torch.autograd.backward(loss)
    return float(loss.detach()), [p.grad.clone() for p in model.parameters()]


def prepared(
    small: SmallGraph,
    node_type: str,
    model: nn.Module,
    given: list[StepInput],
    slots: int = 2,
    precision: Precision = "float64",
) -> CapturedSteps:
    """Captured steps of a model on the device of the tests; batches of 6 seeds fit."""
    sampler = NeighborSampler(small.store, FANOUTS)
    warm_up = [(one.seeds, one.key) for one in given if one.seeds.count == 6]
    columns = {
        t: {name: column.to(DEVICE) for name, column in of_type.items()}
        for t, of_type in small.features.columns.items()
    }
    choice = ColumnChoice({t: ("x",) for t in columns if "x" in columns[t]}, {}, {node_type: ("y",)})
    plan = BatchPlan(sampler, measured_capacities(sampler, warm_up), DEVICE)
    made = [BatchSlot(plan, FeatureTable(columns), choice, recorder()) for _ in range(slots)]
    task = NodeClassification(node_type, "y")
    return CapturedSteps(model.to(DEVICE), task, made, streams(), precision)


def abandoned_losses(steps: CapturedSteps, given: list[StepInput]) -> None:
    """Leave the losses after the first one, with another batch made ahead."""
    losses = steps.losses(given)
    next(losses)
    losses.close()


def case(kind: str) -> tuple[SmallGraph, str, nn.Module]:
    torch.manual_seed(0)
    if kind == "one type":
        small = one_type(torch.float64)
        return small, "node", SAGE.for_graph(Graph(small.store, small.features), 8, 2).double()
    small = shop(torch.float64)
    return small, "item", SAGE.for_graph(Graph(small.store, small.features), 8, 2, embedding=5).double()


@pytest.mark.long
@pytest.mark.parametrize(("kind", "slots"), [("one type", 1), ("typed", 2)])
def test_losses_and_gradients_are_those_of_ordinary_steps(kind: str, slots: int) -> None:
    small, node_type, model = case(kind)
    task = NodeClassification(node_type, "y")
    given = inputs(small, node_type, [6, 6, 3, 30, 6])  # 30 seeds have no place
    expected = [ordinary(small, model, task, one) for one in given]
    with by_triton():
        steps = prepared(small, node_type, model, given, slots)
        found = 0
        for loss, one in zip(steps.losses(given), expected, strict=True):
            assert float(loss) == pytest.approx(one[0], abs=1e-12)
            for parameter, gradient in zip(model.parameters(), one[1], strict=True):
                torch.testing.assert_close(parameter.grad.cpu(), gradient, rtol=0, atol=1e-12)
            found += 1
    assert found == len(given)
    assert steps.overflows >= 1


@pytest.mark.long
def test_copies_of_weights_do_not_change_a_bit_of_bfloat16_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two steps, the second one after an update. Weights are converted once, and then copied together."""
    small = one_type(torch.float32)
    given = inputs(small, "node", [6, 6])

    def steps() -> tuple[list[Tensor], int, int]:
        """Losses and gradients, conversions of single weights of graph layers, and their number."""
        torch.manual_seed(0)
        model = SAGE.for_graph(Graph(small.store, small.features), 8, 2)
        weights = [layer for layer in model.parameters() if layer.dim() == 2 and layer.shape[0] == 8]
        found = []
        with by_triton(), Lowered(weights) as lowered:
            captured = prepared(small, "node", model, given, precision="bfloat16")
            for loss in captured.losses(given):
                found += [loss.clone(), *(gradient.clone() for gradient in captured.gradients)]
                with torch.no_grad():
                    torch._foreach_sub_(list(model.parameters()), captured.gradients)
        return found, lowered.count, len(weights)

    with_copies, converted, of_model = steps()
    assert converted == of_model
    monkeypatch.setattr(AutocastWeights, "used", lambda weights: nullcontext())
    without, converted, _ = steps()
    assert converted > of_model
    for ours, theirs in zip(with_copies, without, strict=True):
        assert torch.equal(ours, theirs)


class Noted(Passed):
    """An event that notes that the host has waited for it."""

    has_waited = False

    def synchronize(self) -> None:
        self.has_waited = True


class NotedStreams(NoStreams):
    """Streams whose events are noted."""

    def record(self, stream: Stream) -> Event:
        return Noted()


@pytest.mark.long
@pytest.mark.skipif(DEVICE.type == "cuda", reason="scripts/gpu-contact keeps a GPU busy meanwhile")
def test_losses_that_were_left_are_begun_again(monkeypatch: pytest.MonkeyPatch) -> None:
    small, node_type, model = case("one type")
    task = NodeClassification(node_type, "y")
    given = inputs(small, node_type, [6, 6, 6])
    expected = [ordinary(small, model, task, one)[0] for one in given]
    make = BatchSlot.make
    with by_triton():
        monkeypatch.setattr("training.test_captured_steps.streams", NotedStreams)
        steps = prepared(small, node_type, model, given)

        def checked(slot: BatchSlot, one: StepInput) -> None:
            last = steps._made[steps._slots.index(slot)]
            assert last is None or last.has_waited  # type: ignore[attr-defined]
            make(slot, one)

        monkeypatch.setattr(BatchSlot, "make", checked)
        abandoned_losses(steps, given)
        assert [float(loss) for loss in steps.losses(given)] == pytest.approx(expected, abs=1e-12)
        slot = steps._slots[0]
        slot._plan._stamps._last -= 1  # as if the input of a later batch had been copied for an earlier one
        make(slot, given[0])
        with pytest.raises(RuntimeError, match="wait for the work of a slot before it is written again"):
            slot.overflowed()
