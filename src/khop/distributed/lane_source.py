"""Batches of a graph that is partitioned across ranks, made in lanes."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace

from khop.exchange.lanes import Lanes
from khop.loading.local_source import LocalSource
from khop.loading.ordered_map import InFlight
from khop.loading.source import BatchRequest, Drawn
from khop.schema import EdgeType, NodeType


@dataclass(frozen=True)
class LaneSource:
    """A batch source whose ranks make each step together, several steps at a time.

    Lane i makes requests i, i + L, ... of a stream. All ranks make the same steps, each with its own seeds.
    """

    local: LocalSource  # over stores that ask other ranks
    lanes: Lanes
    seed_types: tuple[NodeType | EdgeType, ...] = ()

    def prepare(self) -> None:
        """Build the arrays that draws need. Collective."""
        sampler = self.local.sampler
        sampler.graph.prepare(sampler.needs(self.seed_types))

    def make(self, request: BatchRequest) -> Drawn:
        """Make one batch that is waited for. Collective: all ranks request the same step."""
        return self.local.make(request)

    def stream(self, requests: Sequence[BatchRequest], in_flight: InFlight) -> Generator[Drawn]:
        """Make batches in the lanes; see BatchSource and `Lanes.map`. `prefetch_bytes` has no effect.

        The lanes share the threads equally.
        """
        local = self.local.with_threads(max(1, in_flight.threads // self.lanes.count))

        def made(request: BatchRequest) -> Drawn:
            return self._with_traffic(local.draw(request))

        return self.lanes.map(made, requests, in_flight.prefetch, place_of)

    def _with_traffic(self, drawn: Drawn) -> Drawn:
        """Add the counts of this lane, which begin with the batch."""
        peers = self.lanes.peers
        rows = sum(of_type.rows.numel() for of_type in drawn.cached_rows.values())
        with peers.turn:
            for name in ("needed_rows", "remote_rows", "device_cache_rows"):
                peers.counts[name] += rows
            return replace(drawn, traffic=dict(peers.counts))


def place_of(request: BatchRequest) -> tuple[int, int]:
    """Return epoch and step of a request, for messages between ranks."""
    return request.epoch, request.step
