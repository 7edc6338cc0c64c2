"""What a plan is asked for: a graph that need not exist yet, a run on it, and machines."""

from __future__ import annotations

from dataclasses import dataclass

WIDEST_INT32 = 2**31 - 1
_MOST = 10**18  # of anything: figures stay finite


def _check_most(name: str, value: float) -> None:
    if value > _MOST:
        raise ValueError(f"{name} {value:g}: must be at most {_MOST:g}")


@dataclass(frozen=True)
class GraphSize:
    """How large a graph is."""

    nodes: int
    edges: int
    feature_bytes: int  # of a node's columns

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
        """In-edges of a node, of the mean."""
        return self.edges / self.nodes

    @property
    def id_bytes(self) -> int:
        """Of a node id in the topology and on the wire."""
        return 4 if self.nodes <= WIDEST_INT32 else 8


@dataclass(frozen=True)
class Run:
    """What is trained: GraphSAGE with a layer for each hop, in float32."""

    fanouts: tuple[int, ...]
    batch_size: int  # seeds of a step over all machines
    hidden: int = 256
    outputs: int = 47
    remote_share: float | None = None  # of a batch's nodes; None: parts by chance

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
    """Equal machines, a process on each."""

    machines: int
    cores: int  # of each
    network_gbit: float  # each way, of each machine
    latency_s: float  # of a message between two of them
    cache_share: float  # of the rows that a machine owns: so many of others it keeps

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
