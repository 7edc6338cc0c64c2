"""What a run on a graph will take of each machine: memory, traffic and time."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise

from khop.planning.constants import Constants, scaled_sample_ns
from khop.planning.neighbourhood import Neighbourhood, neighbourhood
from khop.planning.workload import Cluster, GraphSize, Run

LANES = 2  # batches in flight between machines
_IN_FLIGHT = 5  # batches in memory: those made ahead, and the one in use
_NUMBER = 4  # bytes of a float32
_PARAMETER_BYTES = 4 * _NUMBER  # with its gradient and Adam's two moments
_PROCESS_BYTES = 400 << 20  # Python, torch and khop: resident memory of `python -c "import torch, khop.api"`
_NODE_BYTES = 16  # that every machine has of every node: its original id and a number such as its label
_DENSE_NODES = 1 << 22  # up to here a sampler's table has four bytes for every node of the graph
_GATHER_COLLECTIVES = _HOP_COLLECTIVES = 3


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
    hop_bytes: float  # of frontiers and neighbours
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
    network: float
    waiting: float  # for messages to travel, in as many rounds as there are

    @property
    def cores(self) -> float:
        """What keeps the cores busy."""
        return self.sampling + self.gathering + self.training + self.exchanging

    @property
    def step(self) -> float:
        """A step, where cores, network and messages on their way overlap."""
        return max(self.cores, self.network, self.waiting)

    @property
    def bottleneck(self) -> str:
        """What the step waits for."""
        if self.step == self.cores:
            names = ("sampling", "gathering", "training", "exchanging")
            return max(names, key=lambda name: float(getattr(self, name)))
        return "network" if self.step == self.network else "latency"


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
    nodes = neighbourhood(graph, run.fanouts, seeds, cluster.machines, run.remote_share)
    return [_placed(placement, graph, run, cluster, constants, nodes) for placement in Placement]


def _placed(
    placement: Placement,
    graph: GraphSize,
    run: Run,
    cluster: Cluster,
    constants: Constants,
    nodes: Neighbourhood,
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
        + cluster.cores * (4 * graph.nodes if graph.nodes <= _DENSE_NODES else 32 * nodes.rows),
        training=_training_bytes(graph, run, nodes),
    )
    by_core = constants.gather_bytes_per_s * cluster.cores
    gathered = (nodes.rows + traffic.fetched_rows) * graph.feature_bytes  # what is fetched, here and there
    work = training_flop(_widths(graph, run), _rows(nodes))
    times = Times(
        sampling=nodes.edges * scaled_sample_ns(constants, edges) * 1e-9 / cluster.cores,
        gathering=gathered / by_core,
        training=work / constants.train_flop_per_s / cluster.cores,
        exchanging=2 * traffic.bytes / constants.exchange_bytes_per_s / cluster.cores,
        network=traffic.bytes * 8 / (cluster.network_gbit * 1e9),
        waiting=_rounds(traffic, cluster) * cluster.latency_s,
    )
    return Prediction(placement, memory, traffic, times)


def _traffic(
    placement: Placement, graph: GraphSize, run: Run, cluster: Cluster, nodes: Neighbourhood, kept: float
) -> Traffic:
    fetched = nodes.remote[-1] - nodes.others.most_likely(kept)
    alone, hops = cluster.machines == 1, len(run.fanouts)
    asked = placement is Placement.PARTITIONED
    answers = sum(nodes.remote_edges) * graph.id_bytes
    hop_bytes = (sum(nodes.remote[:-1]) * graph.id_bytes + answers) if asked else 0.0
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


def _rounds(traffic: Traffic, cluster: Cluster) -> float:
    """Messages that a step waits for one after another: of lanes side by side, and of the gradients' ring."""
    return traffic.collectives / LANES + 2 * (cluster.machines - 1)


def _widths(graph: GraphSize, run: Run) -> list[int]:
    """Of the input and of each layer's output."""
    hidden = [run.hidden] * (len(run.fanouts) - 1)
    return [max(1, graph.feature_bytes // _NUMBER), *hidden, run.outputs]


def _rows(nodes: Neighbourhood) -> list[float]:
    """Output rows of each layer, the input layer's first."""
    totals = [own + remote for own, remote in zip(nodes.own, nodes.remote, strict=True)]
    return totals[-2::-1]


def training_flop(widths: list[int], rows: list[float]) -> float:
    """Multiplications and additions of the matrix products of a GraphSAGE step, forward and backward.

    `rows` are each layer's output rows. A layer multiplies a node's own row and its neighbours' mean; the
    gradient of the input is not computed.
    """
    forward = [4 * count * into * out for count, (into, out) in zip(rows, pairwise(widths), strict=True)]
    return 3 * sum(forward) - forward[0]


def _training_bytes(graph: GraphSize, run: Run, nodes: Neighbourhood) -> float:
    widths = _widths(graph, run)
    activations = sum(
        2 * _NUMBER * count * (into + 2 * out)  # means, products, outputs; and the gradient of each
        for count, (into, out) in zip(_rows(nodes), pairwise(widths), strict=True)
    )
    parameters = sum(2 * into * out + out for into, out in pairwise(widths))
    return activations + parameters * _PARAMETER_BYTES + _PROCESS_BYTES
