"""What a run on a graph will take of each machine: memory, traffic and time."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise

from khop.distributed.placements import LANES
from khop.planning.constants import Constants, scaled_sample_ns
from khop.planning.neighborhood import Neighborhood, neighborhood
from khop.planning.workload import Cluster, GraphSize, Run

_IN_FLIGHT = 5  # batches in memory: those made ahead, and the one in use
_COPIES = 2  # of a lane's bytes on the wire: what is sent, and what comes
_NUMBER = 4  # bytes of a float32
_PARAMETER_BYTES = 4 * _NUMBER  # with its gradient and Adam's two moments
_PROCESS_BYTES = 400 << 20  # Python, torch and khop: resident memory of `python -c "import torch, khop.api"`
_NODE_BYTES = 16  # that every machine has of every node: its original id and a number such as its label
_DENSE_NODES = 1 << 22  # up to here a sampler's table has four bytes for every node of the graph
_GATHER_COLLECTIVES = _HOP_COLLECTIVES = 3
# A message is announced, and sent once the other side is ready for it; so it was seen to take two ways.
_WAYS = 2
_WAYS_OF_A_SUM = 3 * _WAYS  # around the ring: twice for the gradients, once for the losses
_HEADERS = 1.05  # of TCP and IP, in packets of 1,500 bytes
_CARRIED = 0.85  # of a link's rate, where rows and gradients wait for one another: as seen over 10 Mbit/s


class Placement(StrEnum):
    """What every machine has of the edges; of columns it has its part."""

    REPLICATED = "replicated"  # all
    PARTITIONED = "partitioned"  # those that lead to its nodes


@dataclass(frozen=True)
class Memory:
    """Bytes of one machine. Topology, features and cache stay; the first two are mapped files."""

    topology: float
    features: float
    cache: float
    batches: float
    training: float  # activations, parameters, the process itself

    @property
    def total(self) -> float:
        """All together."""
        return self.topology + self.features + self.cache + self.batches + self.training


@dataclass(frozen=True)
class Traffic:
    """Of one machine and one step. Bytes are those sent; as many are received."""

    nodes: float  # of its share of the batch
    remote_rows: float  # of these, on other machines
    fetched_rows: float  # of these, not in the cache
    row_bytes: float  # of rows, and of the ids they are asked by
    hop_bytes: float  # of frontiers and neighbors
    gradient_bytes: float
    collectives: int  # for making the batch

    @property
    def bytes(self) -> float:
        """All together."""
        return self.row_bytes + self.hop_bytes + self.gradient_bytes


@dataclass(frozen=True)
class Times:
    """Seconds that one step takes of each thing, where nothing else holds it up."""

    sampling: float  # on all cores of a machine, as are the next three
    gathering: float
    training: float
    exchanging: float
    calls: float  # what a step takes however small it is; more cores do not shorten it
    batch_network: float  # for what makes a batch to be sent, at the link's rate
    gradient_network: float
    batch_messages: float  # for those that make a batch to travel, one after another
    gradient_messages: float  # for those that the training waits for

    @property
    def cores(self) -> float:
        """What keeps the cores busy."""
        return self.sampling + self.gathering + self.training + self.exchanging + self.calls

    @property
    def network(self) -> float:
        """What keeps the link busy."""
        return self.batch_network + self.gradient_network

    @property
    def waiting(self) -> float:
        """For messages on their way: of lanes side by side, or of gradients."""
        return max(self.batch_messages / LANES, self.gradient_messages)

    @property
    def lanes(self) -> float:
        """From one batch to the next, of as many as are made at once."""
        making = self.sampling + self.gathering + self.exchanging
        return (making + self.batch_network + self.batch_messages) / LANES

    @property
    def trainer(self) -> float:
        """What the training waits for: its own work, and gradients, which the link carries after rows."""
        computing = max(self.training + self.calls, self.batch_network)
        return computing + self.gradient_network + self.gradient_messages

    @property
    def step(self) -> float:
        """A step: cores, lanes and the training go on side by side."""
        return max(self.cores, self.lanes, self.trainer)

    @property
    def bottleneck(self) -> str:
        """What takes most of what the step waits for."""
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
    """One placement."""

    placement: Placement
    memory: Memory
    traffic: Traffic
    times: Times


def predict(graph: GraphSize, run: Run, cluster: Cluster, constants: Constants) -> list[Prediction]:
    """Both placements of a graph. Machines share the batch equally and seeds lie where they are used."""
    seeds = run.batch_size / cluster.machines
    nodes = neighborhood(graph, run.fanouts, seeds, cluster.machines, run.remote_share)
    return [_placed(placement, graph, run, cluster, constants, nodes) for placement in Placement]


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
    gathered = (nodes.rows + traffic.fetched_rows) * graph.feature_bytes  # what is fetched, here and there
    work = training_flop(_widths(graph, run), _rows(nodes))
    per_byte = _HEADERS * 8 / (_CARRIED * cluster.network_gbit * 1e9)
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
    """Of nodes asked about, and of answers, whose rows are filled up to the fanout where there is one."""
    asked = sum(nodes.remote[:-1]) * (graph.id_bytes + _NUMBER)  # with how many neighbors each has
    hops = zip(run.fanouts, nodes.remote[:-1], nodes.remote_edges, strict=True)
    return asked + sum(
        (edges if fanout < 0 else rows * fanout) * graph.id_bytes for fanout, rows, edges in hops
    )


def _widths(graph: GraphSize, run: Run) -> list[int]:
    """Of the input and of each layer's output."""
    hidden = [run.hidden] * (len(run.fanouts) - 1)
    return [max(1, graph.feature_bytes // _NUMBER), *hidden, run.outputs]


def _rows(nodes: Neighborhood) -> list[float]:
    """Output rows of each layer, the input layer's first."""
    totals = [own + remote for own, remote in zip(nodes.own, nodes.remote, strict=True)]
    return totals[-2::-1]


def training_flop(widths: list[int], rows: list[float]) -> float:
    """Multiplications and additions of the matrix products of a GraphSAGE step, forward and backward.

    `rows` are each layer's output rows. A layer multiplies a node's own row and its neighbors' mean; the
    gradient of the input is not computed.
    """
    forward = [4 * count * into * out for count, (into, out) in zip(rows, pairwise(widths), strict=True)]
    return 3 * sum(forward) - forward[0]


def _training_bytes(graph: GraphSize, run: Run, nodes: Neighborhood) -> float:
    widths = _widths(graph, run)
    activations = sum(
        2 * _NUMBER * count * (into + 2 * out)  # means, products, outputs; and the gradient of each
        for count, (into, out) in zip(_rows(nodes), pairwise(widths), strict=True)
    )
    parameters = sum(2 * into * out + out for into, out in pairwise(widths))
    return activations + parameters * _PARAMETER_BYTES + _PROCESS_BYTES
