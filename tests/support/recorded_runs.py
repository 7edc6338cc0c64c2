"""The small run with recorded steps, on the CPU in place of a GPU."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from unittest.mock import patch

import torch

import khop
from khop.api import loader as loaders
from khop.draw import DrawKey
from khop.graph.rule import Rule
from khop.loading.device.device_placement import DevicePlacement
from khop.loading.device.device_source import DeviceSource
from khop.loading.device.placed_stores import Conditions, placed_stores
from khop.sampling.on_device.capacities import Capacities
from khop.sampling.seeds import Seeds
from khop.training import recorded_steps, steps
from khop.training.trainer import Trainer
from support.host_as_device import HostAsDevice
from support.recorders import NoStreams
from support.small_graphs import SmallGraph, one_type
from support.small_runs import SETTINGS as SMALL
from support.small_runs import SmallRun
from support.triton_segments import by_triton

SETTINGS = replace(SMALL, epochs=2, precision="float64", launches="recorded")


def placed(
    graph: SmallGraph,
    topology: str = "device",
    columns: str = "device",
    cache: str = "0",
    check: str = "none",
) -> khop.Graph:
    """The graph with its stores where kernels read them."""
    request = DevicePlacement.of("cuda", topology, columns, cache, check)
    stores = placed_stores(graph.store, graph.features.columns, request, HostAsDevice(), Conditions())
    return khop.Graph(graph.store, graph.features, stores=stores)


@contextmanager
def as_device() -> Iterator[None]:
    """Take the CPU for a device with streams while the block runs."""
    with late_losses(), patch.object(loaders, "streams_of", lambda device: NoStreams()), by_triton():
        yield


def late_losses() -> AbstractContextManager[object]:
    """Read losses of single launches as those of a device: some updates later."""
    return patch.object(steps, "streams_of", lambda device: NoStreams())


@contextmanager
def too_small(*, is_kept: bool = False) -> Iterator[None]:
    """Let every batch exceed the first capacities, which have room for seeds alone; keep them on request."""
    measured = DeviceSource.measured

    def only_seeds(source: DeviceSource, more: Sequence[tuple[Seeds, DrawKey]] = ()) -> Capacities:
        found = measured(source, more)
        seeds = found.nodes[0]
        one = replace(found, nodes=(seeds,) * len(found.nodes), rows=(seeds,) * len(found.rows))
        return found if more else one

    most = 1000 if is_kept else recorded_steps.OVERFLOWS_TO_ENLARGE
    with (
        patch.object(DeviceSource, "measured", only_seeds),
        patch.object(recorded_steps, "OVERFLOWS_TO_ENLARGE", most),
    ):
        yield


@dataclass(frozen=True)
class RecordedRun(SmallRun):
    """14 seeds in steps of 4, in float64 on a placed graph. Its scores do not depend on the model."""

    settings: khop.TrainerSettings = SETTINGS
    graph: SmallGraph = one_type(torch.float64)  # noqa: RUF009
    dropout: float = 0.0
    topology: str = "device"
    columns: str = "device"
    cache: str = "0"
    check: str = "none"  # a comparison takes Triton's interpreter seconds
    rule: Rule = khop.Uniform()  # noqa: RUF009
    expansion: khop.Expansion = khop.Expansion.LAYERED

    def trainer(self) -> Trainer:
        """The trainer, to be used within `as_device`."""
        return self.on(placed(self.graph, self.topology, self.columns, self.cache, self.check))

    def on_cpu(self) -> Trainer:
        """The trainer of the same run without a device."""
        run = self.with_(launches="single")
        return run.on(khop.Graph(self.graph.store, self.graph.features))

    def on(self, graph: khop.Graph) -> Trainer:
        """The trainer with batches of this graph."""
        made = self.over(graph)
        made.evaluate = _scores
        return made

    def loader(self, graph: khop.Graph) -> khop.Loader:
        """The loader of the seeds."""
        return khop.Loader(
            khop.NeighborSampler(graph, [2, 2], rule=self.rule, expansion=self.expansion),
            torch.arange(14),
            4,
            shuffle=True,
            seed=1,
            columns=["x"],
            seed_columns=["y"],
        )


def _scores() -> Mapping[str, float]:
    return {"train": 0.5, "val": 0.5}
