"""Protocol of the batches that a trainer takes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Protocol

from khop.batch import Batch


class BatchLoader(Protocol):
    """Interface of a loader to the trainer; khop.Loader implements it."""

    def __len__(self) -> int:
        """Number of steps per epoch."""
        ...

    def epoch(self, epoch: int) -> Iterator[Batch]:
        """Iterate over the batches of an epoch; in the epoch of a loaded state, over the remaining ones."""
        ...

    def state_dict(self) -> dict[str, object]:
        """Return the position of the consumer, as JSON values."""
        ...

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Continue from the position; ValueError if the state is for other seeds."""
        ...
