"""Inputs of a plan: the size of a graph, which need not exist yet, a run on it, and machines."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # imports NumPy, which the command's help and errors do not need
    from khop.run.planning.degrees import Degrees

WIDEST_INT32 = 2**31 - 1
_NUMBER = 4  # bytes of a float32
_MOST = 10**18  # upper limit of every value, so that results stay finite


def _check_most(name: str, value: float) -> None:
    if value > _MOST:
        raise ValueError(f"{name} {value:g}: must be at most {_MOST:g}")


@dataclass(frozen=True)
class GraphSize:
    """The size of a graph."""

    nodes: int
    edges: int
    feature_bytes: int  # bytes of all columns, per node
    degrees: Degrees | None = None  # counted; None: typical of grown graphs of one type
    feature_numbers: int | None = None  # numbers in all columns, per node; None: float32
    edge_bytes: float = 0.0  # bytes of columns, times and input positions, per edge

    def __post_init__(self) -> None:
        for name, value, least in (
            ("nodes", self.nodes, 1),
            ("edges", self.edges, 0),
            ("feature bytes", self.feature_bytes, 0),
        ):
            if value < least:
                raise ValueError(f"{name} {value:,}: must be {least} or more")
            _check_most(name, value)

    @property
    def mean_degree(self) -> float:
        """The mean number of in-edges per node."""
        return self.edges / self.nodes

    @property
    def numbers(self) -> int:
        """The inputs of the model, per node."""
        return self.feature_bytes // _NUMBER if self.feature_numbers is None else self.feature_numbers

    @property
    def row_bytes(self) -> int:
        """The bytes of features per node of a batch, where narrow columns are float32."""
        return max(self.feature_bytes, _NUMBER * self.numbers)

    @property
    def id_bytes(self) -> int:
        """The bytes of a node id in the topology and on the wire."""
        return 4 if self.nodes <= WIDEST_INT32 else 8


@dataclass(frozen=True)
class PlannedRun:
    """The training run: GraphSAGE with one layer per hop, in float32."""

    fanouts: tuple[int, ...]
    batch_size: int  # seeds per step, over all machines
    hidden: int = 256
    outputs: int = 47
    remote_share: float | None = None  # share of remote nodes in a batch; None: random parts

    def __post_init__(self) -> None:
        if not self.fanouts or any(fanout < 1 and fanout != -1 for fanout in self.fanouts):
            raise ValueError(
                f"fanouts {list(self.fanouts)}: give a number for each hop, -1 for all neighbors"
            )
        for name, value in (
            ("batch size", self.batch_size),
            ("hidden", self.hidden),
            ("outputs", self.outputs),
        ):
            if value < 1:
                raise ValueError(f"{name} {value}: must be 1 or more")
            _check_most(name, value)
        if self.remote_share is not None and not 0 <= self.remote_share <= 1:
            raise ValueError(f"remote share {self.remote_share}: must be from 0 to 1")


@dataclass(frozen=True)
class Cluster:
    """Equal machines with one process each."""

    machines: int
    cores: int  # per machine
    network_gbit: float  # bandwidth per machine and direction, in Gbit/s
    latency_s: float  # one-way latency of a message between two machines, in seconds
    cache_share: float  # cached remote rows / rows that a machine owns

    def __post_init__(self) -> None:
        for name, value in (("machines", self.machines), ("cores", self.cores)):
            if value < 1:
                raise ValueError(f"{name} {value}: must be 1 or more")
        for name, value in vars(self).items():
            _check_most(name.replace("_", " "), value)
        if not self.network_gbit > 0:
            raise ValueError(f"network {self.network_gbit}: must be above 0 Gbit/s")
        if not self.latency_s >= 0:
            raise ValueError(f"latency {self.latency_s * 1000:g} ms: must be 0 or more")
        if not self.cache_share >= 0:
            raise ValueError(f"cache {self.cache_share}: must be 0 or more of the rows that a machine owns")
