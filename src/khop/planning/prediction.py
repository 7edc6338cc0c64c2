"""Predicted memory, traffic and time of a run on each machine."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise

from khop.partition.placements import LANES
from khop.planning.constants import Constants, scaled_sample_ns
from khop.planning.neighborhood import Neighborhood, neighborhood
from khop.planning.workload import Cluster, GraphSize, Run

_IN_FLIGHT = 5  # batches in memory: the prefetched ones and the one in use
_COPIES = 2  # buffers per lane: for sent and for received bytes
_NUMBER = 4  # bytes of a float32
_PARAMETER_BYTES = 4 * _NUMBER  # the parameter, its gradient and Adam's two moments
PROCESS_BYTES = (
    400 << 20
)  # Python, torch and khop: resident memory of `python -c "import torch, khop.api.open_graph"`
_NODE_BYTES = 16  # stored for every node on every machine: the original id and a scalar such as the label
_DENSE_NODES = 1 << 22  # up to this size a sampler's table has 4 bytes for every node of the graph
_GATHER_COLLECTIVES = _HOP_COLLECTIVES = 3
# A message is announced, and sent when the receiver is ready. Measured: it takes two one-way latencies.
_WAYS = 2
_WAYS_OF_A_SUM = 3 * _WAYS  # passes around the ring: two for the gradients, one for the losses
_HEADERS = 1.05  # overhead of TCP and IP headers, in packets of 1,500 bytes
_CARRIED = 0.85  # used share of a link, as rows and gradients wait for each other; measured over 10 Mbit/s


class Placement(StrEnum):
    """The edges stored on every machine. Columns are always partitioned."""

    REPLICATED = "replicated"  # all edges
    PARTITIONED = "partitioned"  # the in-edges of the machine's nodes


@dataclass(frozen=True)
class Memory:
    """Memory of one machine, in bytes.

    Topology, features and cache stay for the entire run. Topology and features are mapped files.
    """

    topology: float
    features: float
    cache: float
    batches: float
    training: float  # activations, parameters, and the process

    @property
    def total(self) -> float:
        """The total memory, in bytes."""
        return self.topology + self.features + self.cache + self.batches + self.training


@dataclass(frozen=True)
class Traffic:
    """Traffic of one machine in one step. Bytes count sent data; the same amount is received."""

    nodes: float  # nodes of the machine's share of the batch
    remote_rows: float  # nodes on other machines
    fetched_rows: float  # remote rows that are not in the cache
    row_bytes: float  # fetched rows and the requested ids
    hop_bytes: float  # frontiers and neighbors
    gradient_bytes: float
    collectives: int  # collectives to make the batch

    @property
    def bytes(self) -> float:
        """The total traffic, in bytes."""
        return self.row_bytes + self.hop_bytes + self.gradient_bytes


@dataclass(frozen=True)
class Times:
    """Time of each stage of one step in seconds, if the stage ran alone."""

    sampling: float  # on all cores of a machine, as the next three
    gathering: float
    training: float
    exchanging: float
    calls: float  # fixed cost of a step; more cores do not reduce it
    batch_network: float  # to send the data of a batch, at the rate of the link
    gradient_network: float
    batch_messages: float  # latency of the messages that make a batch, one after another
    gradient_messages: float  # latency of the gradient messages, for which the training waits

    @property
    def cores(self) -> float:
        """The time for which the cores are busy."""
        return self.sampling + self.gathering + self.training + self.exchanging + self.calls

    @property
    def network(self) -> float:
        """The time for which the link is busy."""
        return self.batch_network + self.gradient_network

    @property
    def waiting(self) -> float:
        """The wait for message latency: of parallel lanes or of gradients, the longer one."""
        return max(self.batch_messages / LANES, self.gradient_messages)

    @property
    def lanes(self) -> float:
        """The time between two batches, with all lanes in parallel."""
        making = self.sampling + self.gathering + self.exchanging
        return (making + self.batch_network + self.batch_messages) / LANES

    @property
    def trainer(self) -> float:
        """The time of the training: its computation, and gradients, which the link carries after rows."""
        computing = max(self.training + self.calls, self.batch_network)
        return computing + self.gradient_network + self.gradient_messages

    @property
    def step(self) -> float:
        """The time of a step: cores, lanes and the training work in parallel, and the slowest decides."""
        return max(self.cores, self.lanes, self.trainer)

    @property
    def bottleneck(self) -> str:
        """The name of the stage that takes the largest part of the step time."""
        names = ("sampling", "gathering", "training", "exchanging", "calls")
        of_cores = {name: float(getattr(self, name)) for name in names}
        if self.step == self.cores:
            return max(of_cores, key=lambda name: of_cores[name])
        if self.step == self.lanes:
            making = {name: of_cores[name] for name in ("sampling", "gathering", "exchanging")}
            parts = {**making, "network": self.batch_network, "latency": self.batch_messages}
        else:
            computing = {name: of_cores[name] for name in ("training", "calls")}
            parts = {**computing, "network": self.network, "latency": self.gradient_messages}
        return max(parts, key=lambda name: parts[name])


@dataclass(frozen=True)
class Prediction:
    """The prediction for one placement."""

    placement: Placement
    memory: Memory
    traffic: Traffic
    times: Times


def predict(graph: GraphSize, run: Run, cluster: Cluster, constants: Constants) -> list[Prediction]:
    """Predict both placements. Machines share the batch equally, and each has its seeds locally."""
    seeds = run.batch_size / cluster.machines
    nodes = neighborhood(graph, run.fanouts, seeds, cluster.machines, run.remote_share)
    return [_placed(placement, graph, run, cluster, constants, nodes) for placement in Placement]


def seconds_per_byte(cluster: Cluster) -> float:
    """Return the time of a byte on the link of a machine, with its share of headers and pauses."""
    return _HEADERS * 8 / (_CARRIED * cluster.network_gbit * 1e9)


def _placed(
    placement: Placement,
    graph: GraphSize,
    run: Run,
    cluster: Cluster,
    constants: Constants,
    nodes: Neighborhood,
) -> Prediction:
    kept = cluster.cache_share * graph.nodes / cluster.machines
    traffic = _traffic(placement, graph, run, cluster, nodes, kept)
    share = 1 if placement is Placement.REPLICATED else cluster.machines
    edges = graph.edges / share
    memory = Memory(
        topology=graph.id_bytes * edges + 8 * graph.nodes / share + _NODE_BYTES * graph.nodes,
        features=graph.feature_bytes * graph.nodes / cluster.machines,
        cache=min(kept, nodes.others.nodes) * graph.feature_bytes + (graph.nodes if kept else 0),
        batches=_IN_FLIGHT * (nodes.rows * (graph.feature_bytes + 8) + nodes.edges * 8)
        + LANES * _COPIES * (traffic.row_bytes + traffic.hop_bytes)
        + cluster.cores * (4 * graph.nodes if graph.nodes <= _DENSE_NODES else 32 * nodes.rows),
        training=_training_bytes(graph, run, nodes),
    )
    by_core = constants.gather_bytes_per_s * cluster.cores
    # A machine gathers its batch, and on average as many rows for other machines as it fetches from them.
    gathered = (nodes.rows + traffic.fetched_rows) * graph.feature_bytes
    work = training_flop(_widths(graph, run), _rows(nodes))
    per_byte = seconds_per_byte(cluster)
    times = Times(
        sampling=nodes.edges * scaled_sample_ns(constants, edges) * 1e-9 / cluster.cores,
        gathering=gathered / by_core,
        training=work / constants.train_flop_per_s / cluster.cores,
        exchanging=2 * traffic.bytes / constants.exchange_bytes_per_s / cluster.cores,
        calls=constants.step_s + traffic.collectives * constants.exchange_s,
        batch_network=(traffic.row_bytes + traffic.hop_bytes) * per_byte,
        gradient_network=traffic.gradient_bytes * per_byte,
        batch_messages=_WAYS * traffic.collectives * cluster.latency_s,
        gradient_messages=_WAYS_OF_A_SUM * (cluster.machines - 1) * cluster.latency_s,
    )
    return Prediction(placement, memory, traffic, times)


def _traffic(
    placement: Placement, graph: GraphSize, run: Run, cluster: Cluster, nodes: Neighborhood, kept: float
) -> Traffic:
    fetched = nodes.remote[-1] - nodes.others.most_likely(kept)
    alone, hops = cluster.machines == 1, len(run.fanouts)
    asked = placement is Placement.PARTITIONED
    hop_bytes = _hop_bytes(graph, run, nodes) if asked else 0.0
    parameters = sum(2 * into * out + out for into, out in pairwise(_widths(graph, run)))
    return Traffic(
        nodes=nodes.rows,
        remote_rows=nodes.remote[-1],
        fetched_rows=fetched,
        row_bytes=fetched * (graph.feature_bytes + graph.id_bytes),
        hop_bytes=hop_bytes,
        gradient_bytes=2 * parameters * _NUMBER * (1 - 1 / cluster.machines),
        collectives=0 if alone else _GATHER_COLLECTIVES + asked * hops * _HOP_COLLECTIVES,
    )


def _hop_bytes(graph: GraphSize, run: Run, nodes: Neighborhood) -> float:
    """Return the bytes of requested nodes and of answers, which are padded to a limited fanout."""
    asked = sum(nodes.remote[:-1]) * (graph.id_bytes + _NUMBER)  # the id, and the number of its neighbors
    hops = zip(run.fanouts, nodes.remote[:-1], nodes.remote_edges, strict=True)
    return asked + sum(
        (edges if fanout < 0 else rows * fanout) * graph.id_bytes for fanout, rows, edges in hops
    )


def _widths(graph: GraphSize, run: Run) -> list[int]:
    """Return the widths of the input and of the output of each layer."""
    hidden = [run.hidden] * (len(run.fanouts) - 1)
    return [max(1, graph.feature_bytes // _NUMBER), *hidden, run.outputs]


def _rows(nodes: Neighborhood) -> list[float]:
    """Return the output rows of each layer, the input layer first."""
    totals = [own + remote for own, remote in zip(nodes.own, nodes.remote, strict=True)]
    return totals[-2::-1]


def training_flop(widths: list[int], rows: list[float]) -> float:
    """Count the multiplications and additions in the matrix products of a GraphSAGE step.

    Forward and backward passes count. `rows` are the output rows of each layer. A layer multiplies the row of
    a node and the mean of its neighbors. The gradient of the input is not computed.
    """
    forward = [4 * count * into * out for count, (into, out) in zip(rows, pairwise(widths), strict=True)]
    return 3 * sum(forward) - forward[0]


def _training_bytes(graph: GraphSize, run: Run, nodes: Neighborhood) -> float:
    widths = _widths(graph, run)
    activations = sum(
        2 * _NUMBER * count * (into + 2 * out)  # means, products and outputs, each with its gradient
        for count, (into, out) in zip(_rows(nodes), pairwise(widths), strict=True)
    )
    parameters = sum(2 * into * out + out for into, out in pairwise(widths))
    return activations + parameters * _PARAMETER_BYTES + PROCESS_BYTES
