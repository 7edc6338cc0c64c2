"""Protocol of the batches that a trainer takes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from khop.batch import Batch
from khop.sampling.sampler import Sampler

if TYPE_CHECKING:
    from khop.loading.static_batches import StaticBatches


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
class SamplingLoader(Protocol):
    """A loader whose batches are samples of a graph; khop.Loader implements it."""

    graph_sampler: Sampler


@runtime_checkable
class StaticLoader(BatchLoader, Protocol):
    """A loader that may also give its batches with static shapes; khop.Loader implements it."""

    def static_batches(self, saved: Mapping[str, object] | None = None) -> StaticBatches:
        """Return the batches for recorded steps, with the capacities of a checkpoint; or Unsupported."""
        ...
