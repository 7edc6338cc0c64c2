"""Steps of training up to the averaged gradients, launched operation by operation or as CUDA graphs."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor, nn

from khop.batch import Batch, Change
from khop.distributed.processes.group import Group
from khop.draw import DrawKey, Purpose, mix64
from khop.loading.device.streams import Streams, streams_of
from khop.models.rgcn import RelationColumn
from khop.sampling.sampler import Sampler
from khop.training import traffic
from khop.training.gradients import GradientClock, averaging, not_yet_averaged
from khop.training.linear_setup import products
from khop.training.optimizer_settings import ModelOptimizer
from khop.training.run_output import DeviceLoss
from khop.training.settings import TrainerSettings
from khop.training.step_clock import StepClock
from khop.training.tasks import Task
from khop.training.trainer_state import check_loss

if TYPE_CHECKING:
    from khop.loading.device.device_source import StaticBatches


class BatchLoader(Protocol):
    """Interface of a loader to the trainer; khop.Loader implements it."""

    def __len__(self) -> int:
        """Number of steps per epoch."""
        ...

    def epoch(self, epoch: int) -> Iterator[Batch]:
        """Iterate over the batches of an epoch; in the epoch of a loaded state, over the remaining ones.

        A step may have several batches (`Batch.micro_batches`), on every rank alike.
        """
        ...

    def state_dict(self) -> dict[str, object]:
        """Return the position of the consumer, as JSON values."""
        ...

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Continue from the position; ValueError if the state is for other seeds."""
        ...


@runtime_checkable
class SamplingLoader(BatchLoader, Protocol):
    """A loader whose batches are samples of a graph; khop.Loader implements it."""

    graph_sampler: Sampler

    def compare_ranks(self) -> None:
        """Compare the loader with those of the other ranks; ValueError if they differ. Collective."""
        ...

    def static_batches(self, saved: Mapping[str, object] | None = None) -> StaticBatches:
        """Return the batches for recorded steps, with the capacities of a checkpoint; or Unsupported."""
        ...


def compare_ranks(loader: BatchLoader) -> None:
    """Raise ValueError if the ranks have different loaders, for example of slices of the seeds."""
    if isinstance(loader, SamplingLoader):
        loader.compare_ranks()


def notice_drawn_relations(model: nn.Module, loader: BatchLoader) -> None:
    """Warn if an R-GCN over a relation column is trained on sampled neighbors without weights."""
    found = (getattr(each, "relations", None) for each in model.modules())
    columns = [each for each in found if isinstance(each, RelationColumn)]
    if not columns or not isinstance(loader, SamplingLoader):
        return
    averaged = loader.graph_sampler.averaged_types
    for column in columns:
        if averaged.isdisjoint(column.counts):
            continue
        name = column.column
        warnings.warn(
            f"R-GCN averages the drawn edges of each relation of {name!r}: with limited fanouts, rare "
            "relations count less in training than in exact inference; draw with "
            f"rule=khop.RelationMean({name!r}), in a run --rule relation-mean --rule-column {name}",
            stacklevel=2,
        )


def mover(model: nn.Module) -> Change:
    """Return a function that moves tensors to the model's device and casts floating-point ones."""
    parameter = next(model.parameters(), torch.empty(0))
    device, dtype = parameter.device, parameter.dtype

    def move(tensor: Tensor) -> Tensor:
        return tensor.to(device, dtype if tensor.is_floating_point() else tensor.dtype, non_blocking=True)

    return move


def in_dtype_of(model: nn.Module, batch: Batch) -> Batch:
    """Return a batch on the model's device with its floating-point columns in the model's dtype.

    If they have it already, `batch` itself is returned.
    """
    dtype = next(model.parameters(), torch.empty(0)).dtype

    def cast(tensor: Tensor) -> Tensor:
        return tensor.to(dtype) if tensor.is_floating_point() else tensor

    edges = [a.columns for block in batch.blocks for a in block.adjacencies.values()]
    of_types = (*batch.columns.values(), *batch.seed_columns.values(), *edges)
    columns = [column for of_type in of_types for column in of_type.values()]
    fits = all(column.dtype == dtype for column in columns if column.is_floating_point())
    return batch if fits else batch.map(cast)


_BEHIND = 2  # updates after which a loss is read, because it has been computed by then


@dataclass(frozen=True)
class ComputedStep:
    """A step; its gradients, averaged over the ranks, are in the parameters."""

    batch: Batch  # of this rank
    seeds: int  # losses, or groups of seeds, of this rank
    loss_sum: float | DeviceLoss  # sum of the losses of this rank
    ready_at: float | None = None  # time at which this rank waited for the others; None: unknown


class Steps(Protocol):
    """Implementers compute the steps of a trainer."""

    streams: Streams | None  # stream of the device that computes the losses; None: they are on the host

    def epoch(self, epoch: int, clock: StepClock) -> Generator[ComputedStep]:
        """Yield the remaining steps of an epoch, each once its gradients are exchanged. Collective."""
        ...

    def logged(self, epoch: int, step: int, counts: Mapping[str, Sequence[float]]) -> None:
        """Take the counts of all ranks in a step, by name, on all ranks alike and in order."""
        ...

    def state(self) -> dict[str, object]:
        """Return plain values for a checkpoint, so that shapes are the same after a resume."""
        ...


class EagerSteps:
    """Steps of batches with their own shapes, launched operation by operation.

    The host does not synchronize with a device: losses are read a few updates later, and gradients are
    clipped on the device. On the CPU, losses are read and checked at once.
    """

    def __init__(
        self,
        model: nn.Module,
        task: Task,
        loader: BatchLoader,
        settings: TrainerSettings,
        optimizer: ModelOptimizer,
        group: Group,
        checkpoint: Path,
    ) -> None:
        self._model, self._task, self._loader = model, task, loader
        self._settings, self._optimizer, self._group = settings, optimizer, group
        self._checkpoint = checkpoint  # named in errors
        self.streams = streams_of(torch.device(settings.device))
        self._gradients = GradientClock()
        self._parallel = averaging(group, model, self._gradients)

    def epoch(self, epoch: int, clock: StepClock) -> Generator[ComputedStep]:
        """Yield the remaining steps of an epoch; see Steps."""
        batches = self._loader.epoch(epoch)
        for batch in batches:
            clock.received(batch)
            with products(self._settings.precision):
                computed = self._computed(batch, batches, clock)
            yield computed
            del batch, computed  # free their memory before waiting for the next batch

    def logged(self, epoch: int, step: int, counts: Mapping[str, Sequence[float]]) -> None:
        """Do nothing, because batches have the shapes that they need."""

    def state(self) -> dict[str, object]:
        """Return no values, because shapes are not fixed."""
        return {}

    def _computed(self, batch: Batch, others: Iterator[Batch], clock: StepClock) -> ComputedStep:
        """Compute a step from its first batch; the other micro-batches come from `others`."""
        group, position = self._group, (batch.epoch, batch.step)
        _seed_generators(
            torch.device(self._settings.device), dropout_seed(self._settings.seed, *position, group.rank)
        )
        self._optimizer.zero_grad()
        loss_sum: float | Tensor = 0.0
        seeds, counts = 0, batch.traffic
        while not batch.ends_step:
            with not_yet_averaged(self._parallel):
                losses, of_batch, num_seeds = self._forward(batch, clock)
                torch.autograd.backward(batch.global_mean(losses))
            clock.lap("computing", "backward")
            loss_sum, seeds = loss_sum + of_batch, seeds + num_seeds
            batch = next(others)
            clock.received(batch)
            counts = traffic.added(counts, batch.traffic)
        losses, of_batch, num_seeds = self._forward(batch, clock)
        loss_sum, seeds = loss_sum + of_batch, seeds + num_seeds
        with group.exchanging("exchanging gradients", *position):
            torch.autograd.backward(batch.global_mean(losses))
            self._optimizer.exchange()
            self._optimizer.clip(group)
            loss = self._loss(loss_sum)
        clock.lap("computing", "backward", until=self._gradients.ready_at)
        clock.lap("communicating", "gradients")
        return ComputedStep(replace(batch, traffic=counts), seeds, loss, self._gradients.ready_at)

    def _loss(self, loss_sum: float | Tensor) -> float | DeviceLoss:
        if isinstance(loss_sum, float):
            return loss_sum
        assert self.streams is not None, "other losses are numbers"
        return DeviceLoss(loss_sum, self.streams, _BEHIND)

    def _forward(self, batch: Batch, clock: StepClock) -> tuple[Tensor, float | Tensor, int]:
        """Return the losses of a batch, their sum, and the number of its seeds, or groups of them."""
        settings, position = self._settings, (batch.epoch, batch.step)
        with (
            self._group.exchanging("computing the loss", *position),
            torch.autocast(settings.device_type, torch.bfloat16, enabled=settings.precision == "bfloat16"),
        ):
            losses = self._task.losses(self._parallel(in_dtype_of(self._model, batch)), batch)
        loss_sum = self._loss_sum(losses, batch)
        clock.lap("computing", "forward")
        num_groups = batch.sample.num_groups
        return losses, loss_sum, losses.numel() if num_groups is None else num_groups

    def _loss_sum(self, losses: Tensor, batch: Batch) -> float | Tensor:
        """Return the sum of losses: a checked number on the CPU, or an unchecked tensor on a device."""
        loss_sum = batch.sample.weighted(losses.detach().double(), batch.num_global_seeds).sum()
        if self.streams is not None:
            return loss_sum
        known = float(loss_sum)
        check_loss(known, batch.epoch, batch.step, self._checkpoint)
        return known


def _seed_generators(device: torch.device, key: DrawKey) -> None:
    """Seed the generators of a step without torch.manual_seed, which would seed all visible GPUs."""
    if device.type not in ("cpu", "cuda"):
        torch.manual_seed(key.value)
        return
    torch.default_generator.manual_seed(key.value)
    if device.type == "cuda":
        index = torch.cuda.current_device() if device.index is None else device.index
        torch.cuda.default_generators[index].manual_seed(key.value)


def dropout_seed(seed: int, epoch: int, step: int, rank: int) -> DrawKey:
    """Return the key of a rank's dropout in a step."""
    key = DrawKey.of(seed, Purpose.DROPOUT, epoch, step)
    return DrawKey(mix64(key.value ^ mix64(rank)))


Model = TypeVar("Model", bound=nn.Module)


def seeded(seed: int, make: Callable[[], Model]) -> Model:
    """Call `make` with torch's global generator seeded by `seed`; the generator is restored afterwards.

    Modules only draw their initial weights from that generator. Make the model on the CPU, so that the
    weights do not depend on the device.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return make()
