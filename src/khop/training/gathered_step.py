"""Values of one update that all ranks exchange: loss, seeds, signals, times and traffic."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from khop.runtime.group import Group
from khop.training import traffic
from khop.training.step_clock import LATE, STAGES


@dataclass(frozen=True)
class RankStep:
    """Values of one rank."""

    loss_sum: float
    seeds: int
    signal_number: int  # of the signal that the rank has recorded, or 0
    ready_at: float  # moment at which its gradients were ready, by the clock of rank 0

    def gathered(
        self, group: Group, seconds: Mapping[str, float], counts: Mapping[str, float]
    ) -> GatheredStep:
        """Exchange the values, with the seconds by stage and the counts of a batch's traffic. Collective."""
        own = [self.loss_sum, self.seeds, self.signal_number, self.ready_at, *seconds.values()]
        values = torch.tensor([*own, *traffic.values_of(counts)], dtype=torch.float64)
        return GatheredStep(group.gather(values), counts)


@dataclass(frozen=True)
class GatheredStep:
    """Values of all ranks, equal on all of them."""

    values: Tensor  # float64 (ranks, 4 + stages + counts): the fields of RankStep, seconds, counts
    counts: Mapping[str, float]  # traffic of this rank's batch; all ranks count the same names

    def with_losses(self, sums: Tensor) -> GatheredStep:
        """Return the same step with the losses of the ranks: float64 (ranks), or (1) of all together."""
        values = self.values.clone()
        values[: sums.numel(), 0] = sums
        return replace(self, values=values)

    @property
    def loss_sum(self) -> float:
        """Sum of the losses over all ranks."""
        return float(self.values[:, 0].sum())

    @property
    def seeds(self) -> int:
        """Number of losses over all ranks."""
        return int(self.values[:, 1].sum())

    @property
    def signal_number(self) -> int:
        """Number of the signal that a rank has recorded, or 0."""
        return int(self.values[:, 2].max())

    @property
    def seconds(self) -> dict[str, list[float]]:
        """Seconds of each rank by stage, and its delay behind the first rank at the gradient exchange."""
        columns = (self.values[:, 3] - self.values[:, 3].min(), *self.values[:, 4 : 4 + len(STAGES)].T)
        return {
            name: [round(s, 6) for s in of_ranks.tolist()]
            for name, of_ranks in zip((LATE, *STAGES), columns, strict=True)
        }

    @property
    def traffic(self) -> dict[str, list[float]]:
        """Counts of each rank by name."""
        return traffic.of_ranks(self.counts, self.values[:, 4 + len(STAGES) :])
