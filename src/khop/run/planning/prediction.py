"""Predicted memory, traffic and time of a run on each machine.

The number of nodes in a batch comes from a mean-field model. Nodes fall into classes of equal type and
degrees. A hop draws up to its fanout for each edge type. A drawn edge leads to a node of its source type with
a probability proportional to the node's out-edges. A fixed share of the edges leads to other machines, all
equally likely. An edge that two hops draw leads to no new node.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import pairwise

import numpy as np

from khop.graph.partitions.placements import LANES
from khop.run.planning.degrees import Degrees, Vector
from khop.run.planning.workload import Cluster, GraphSize, PlannedRun


@dataclass(frozen=True)
class Constants:
    """The costs of work on one core."""

    sample_ns: float  # per drawn edge, in a graph with MEASURED_EDGES edges
    gather_bytes_per_s: float  # of rows gathered by id
    train_flop_per_s: float  # operations of the matrix products of a training step / time of the entire step
    exchange_bytes_per_s: float  # bytes sent and received, per second of core time
    step_s: float  # fixed cost of a step: measured on two processes with one node each
    exchange_s: float  # fixed cost of a collective while a batch is made: measured on empty messages
    disk_reads_per_s: float  # random reads of a page
    disk_bytes_per_s: float  # of a file read from its beginning to its end


MEASURED_EDGES = 20_000_000  # edges of the graph that `measure` samples

# 2 cores of AMD EPYC, no other load: medians of three runs of `khop plan --measure --json`. The disk is an
# exception: single runs of benchmarks/larger_than_memory.py and of dd while the machine was busy.
MEASURED = Constants(
    sample_ns=10.1,
    gather_bytes_per_s=11.5e9,
    train_flop_per_s=78e9,
    exchange_bytes_per_s=1.6e9,
    step_s=11.6e-3,
    exchange_s=0.3e-3,
    disk_reads_per_s=46e3,
    disk_bytes_per_s=0.36e9,
)

# Pairs (edges of a graph, ns per drawn edge), on the same machine: `python benchmarks/scaling.py`. The cost
# is constant beyond the last pair, because there every access already misses the caches.
SCALING = ((1e5, 9.1), (1e6, 5.3), (3e6, 6.8), (1e7, 8.1), (3e7, 9.6), (1e8, 10.2), (3e8, 14.9))


def scaled_sample_ns(constants: Constants, edges: float) -> float:
    """Return the cost in ns per drawn edge, for a graph with this number of edges."""
    return constants.sample_ns * _curve(edges) / _curve(MEASURED_EDGES)


def _curve(edges: float) -> float:
    (first, cheapest), (last, dearest) = SCALING[0], SCALING[-1]
    if edges <= first:
        return cheapest
    for (low, below), (high, above) in pairwise(SCALING):
        if edges <= high:
            return below + (above - below) * math.log(edges / low) / math.log(high / low)
    assert edges > last
    return dearest


_HALVINGS = 40  # bisection steps in the search for the share of cut edges


@dataclass(frozen=True, eq=False)
class Population:
    """The nodes of one machine, or of all other machines, with the probability that a batch contains them."""

    nodes: float
    share: Vector  # float64 (classes): share of these nodes
    chance: Vector  # float64 (classes): probability that a batch contains a node
    undrawn: Vector  # float64 (node types, classes): times the share of its in-edges that are not drawn yet

    @property
    def expected(self) -> float:
        """The expected number of these nodes in a batch."""
        return self.nodes * float(self.share @ self.chance)

    def draws(self, degrees: Degrees, fanout: int) -> float:
        """Return the expected number of edges that a hop draws for these nodes in the batch."""
        return self.nodes * float((degrees.drawn(fanout) @ (self.share * self.chance)).sum())

    def first_draws(self, degrees: Degrees, fanout: int) -> Vector:
        """Return the expected number of these edges that no hop before has drawn, by source type."""
        return self.nodes * ((degrees.drawn(fanout) * self.undrawn) @ self.share)

    def reached(self, degrees: Degrees, fanout: int, draws: Vector) -> Population:
        """Return the population after a hop in which `draws` new edges led to its nodes, by their type."""
        ends = self.nodes * degrees.sums(self.share * degrees.ends)
        per_end = np.divide(draws, ends, out=np.zeros_like(ends), where=ends > 0)
        chance = 1 - (1 - self.chance) * np.exp(-per_end[degrees.types] * degrees.ends)
        left = 1 - degrees.drawn(fanout) / np.maximum(degrees.degree, 1e-300)
        return Population(self.nodes, self.share, chance, self.undrawn * left + chance - self.chance)

    def most_likely(self, count: float) -> float:
        """Return the expected number of batch nodes among the `count` most likely nodes."""
        order = np.argsort(-self.chance, stable=True)
        sizes = self.nodes * self.share[order]
        before = np.cumsum(sizes) - sizes
        return float(np.clip(count - before, 0, sizes) @ self.chance[order])


@dataclass(frozen=True, eq=False)
class BatchSize:
    """The size of one machine's share of a batch. Entry h of a tuple is after h hops; entry 0 are the seeds.

    Edges have one entry per hop.
    """

    own: tuple[float, ...]  # nodes of this machine
    remote: tuple[float, ...]  # nodes of other machines
    own_edges: tuple[float, ...]  # drawn by each hop from nodes of this machine
    remote_edges: tuple[float, ...]  # drawn by each hop from nodes of others
    others: Population  # the nodes of other machines, after the last hop
    here: Population  # the nodes of this machine, after the last hop

    @property
    def rows(self) -> float:
        """The total number of nodes."""
        return self.own[-1] + self.remote[-1]

    @property
    def edges(self) -> float:
        """The total number of edges."""
        return sum(self.own_edges) + sum(self.remote_edges)

    @property
    def remote_share(self) -> float:
        """The share of remote nodes."""
        return self.remote[-1] / self.rows


def neighborhood(
    graph: GraphSize, fanouts: tuple[int, ...], seeds: float, machines: int, remote_share: float | None
) -> BatchSize:
    """Predict the neighborhood of `seeds` nodes of one machine, with the layered expansion.

    `remote_share` is the share of remote batch nodes, as printed by `khop partition --fanouts`. None: nodes
    are assigned to machines at random, which gives the largest share that a partition can have.
    """
    degrees = graph.degrees or Degrees.grown(graph.nodes, graph.mean_degree)
    by_chance = 1 - 1 / machines
    most = _expanded(graph, degrees, fanouts, seeds, machines, by_chance)
    if remote_share is None or machines == 1 or remote_share >= most.remote_share:
        return most
    low, high = 0.0, by_chance
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        found = _expanded(graph, degrees, fanouts, seeds, machines, middle)
        low, high = (middle, high) if found.remote_share < remote_share else (low, middle)
    return found


def _expanded(
    graph: GraphSize, degrees: Degrees, fanouts: tuple[int, ...], seeds: float, machines: int, cut: float
) -> BatchSize:
    """Predict the neighborhood, where `cut` is the share of edges that lead to another machine."""
    nodes = graph.nodes / machines
    candidates = max(nodes * float(degrees.share @ degrees.is_seed), 1e-300)
    of_seeds, never = degrees.is_seed.astype(np.float64), np.zeros_like(degrees.degree)
    of_seeds *= min(1.0, seeds / candidates)
    own = Population(nodes, degrees.share, of_seeds, never + of_seeds)
    others = Population(graph.nodes - nodes, degrees.share, never[0], never)
    back = cut / max(machines - 1, 1)  # share of the edges drawn for remote nodes that lead to this machine
    at_own, at_others, own_edges, other_edges = [own.expected], [0.0], [], []
    for fanout in fanouts:
        own_edges.append(own.draws(degrees, fanout))
        other_edges.append(others.draws(degrees, fanout))
        here, there = own.first_draws(degrees, fanout), others.first_draws(degrees, fanout)
        own = own.reached(degrees, fanout, here * (1 - cut) + there * back)
        others = others.reached(degrees, fanout, here * cut + there * (1 - back))
        at_own.append(own.expected)
        at_others.append(others.expected)
    return BatchSize(tuple(at_own), tuple(at_others), tuple(own_edges), tuple(other_edges), others, own)


_IN_FLIGHT = 5  # batches in memory: the prefetched ones and the one in use
_COPIES = 2  # buffers per lane: for sent and for received bytes
_NUMBER = 4  # bytes of a float32
_PARAMETER_BYTES = 4 * _NUMBER  # the parameter, its gradient and Adam's two moments
PROCESS_BYTES = (
    400 << 20
)  # Python, torch and khop: resident memory of `python -c "import torch, khop.api.open_graph"`
_NODE_BYTES = 16  # stored for every node on every machine: the original id and a scalar such as the label
_DENSE_NODES = 1 << 22  # up to this size, a sampler has a table with 4 bytes per node of the graph
_GATHER_COLLECTIVES = _HOP_COLLECTIVES = 3
# A message is announced, and sent when the receiver is ready. Measured: it takes two one-way latencies.
_WAYS = 2
_WAYS_OF_A_SUM = 3 * _WAYS  # passes around the ring: two for the gradients, one for the losses
_HEADERS = 1.05  # overhead of TCP and IP headers, in packets of 1,500 bytes
_CARRIED = 0.85  # used share of a link, as rows and gradients wait for each other; measured over 10 Mbit/s


class EdgePlacement(StrEnum):
    """The edges stored on every machine. Columns are always partitioned."""

    REPLICATED = "replicated"  # all edges
    PARTITIONED = "partitioned"  # the in-edges of the machine's nodes


@dataclass(frozen=True)
class MachineMemory:
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
    batch_network: float  # to send the data of a batch, at the link's bandwidth
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
        """The time of a step: cores, lanes and training run in parallel, so it is that of the slowest."""
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

    placement: EdgePlacement
    memory: MachineMemory
    traffic: Traffic
    times: Times


def predict(graph: GraphSize, run: PlannedRun, cluster: Cluster, constants: Constants) -> list[Prediction]:
    """Predict both placements. Machines share the batch equally, and each has its seeds locally."""
    seeds = run.batch_size / cluster.machines
    nodes = neighborhood(graph, run.fanouts, seeds, cluster.machines, run.remote_share)
    return [_placed(placement, graph, run, cluster, constants, nodes) for placement in EdgePlacement]


def seconds_per_byte(cluster: Cluster) -> float:
    """Return the time of a byte on the link of a machine, with its share of headers and pauses."""
    return _HEADERS * 8 / (_CARRIED * cluster.network_gbit * 1e9)


def _placed(
    placement: EdgePlacement,
    graph: GraphSize,
    run: PlannedRun,
    cluster: Cluster,
    constants: Constants,
    nodes: BatchSize,
) -> Prediction:
    kept = cluster.cache_share * graph.nodes / cluster.machines
    traffic = _traffic(placement, graph, run, cluster, nodes, kept)
    share = 1 if placement is EdgePlacement.REPLICATED else cluster.machines
    edges = graph.edges / share
    memory = MachineMemory(
        topology=(graph.id_bytes + graph.edge_bytes) * edges
        + 8 * graph.nodes / share
        + _NODE_BYTES * graph.nodes,
        features=graph.feature_bytes * graph.nodes / cluster.machines,
        cache=min(kept, nodes.others.nodes) * graph.feature_bytes + (graph.nodes if kept else 0),
        batches=_IN_FLIGHT * (nodes.rows * (graph.row_bytes + 8) + nodes.edges * 8)
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
    placement: EdgePlacement,
    graph: GraphSize,
    run: PlannedRun,
    cluster: Cluster,
    nodes: BatchSize,
    kept: float,
) -> Traffic:
    fetched = nodes.remote[-1] - nodes.others.most_likely(kept)
    alone, hops = cluster.machines == 1, len(run.fanouts)
    asked = placement is EdgePlacement.PARTITIONED
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


def _hop_bytes(graph: GraphSize, run: PlannedRun, nodes: BatchSize) -> float:
    """Return the bytes of requested nodes and of answers, which are padded to a limited fanout."""
    asked = sum(nodes.remote[:-1]) * (graph.id_bytes + _NUMBER)  # the id, and the number of its neighbors
    hops = zip(run.fanouts, nodes.remote[:-1], nodes.remote_edges, strict=True)
    return asked + sum(
        (edges if fanout < 0 else rows * fanout) * graph.id_bytes for fanout, rows, edges in hops
    )


def _widths(graph: GraphSize, run: PlannedRun) -> list[int]:
    """Return the widths of the input and of the output of each layer."""
    hidden = [run.hidden] * (len(run.fanouts) - 1)
    return [max(1, graph.numbers), *hidden, run.outputs]


def _rows(nodes: BatchSize) -> list[float]:
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


def _training_bytes(graph: GraphSize, run: PlannedRun, nodes: BatchSize) -> float:
    widths = _widths(graph, run)
    activations = sum(
        2 * _NUMBER * count * (into + 2 * out)  # means, products and outputs, each with its gradient
        for count, (into, out) in zip(_rows(nodes), pairwise(widths), strict=True)
    )
    parameters = sum(2 * into * out + out for into, out in pairwise(widths))
    return activations + parameters * _PARAMETER_BYTES + PROCESS_BYTES


_MOST = 1 << 16


def fewest_machines(
    graph: GraphSize, run: PlannedRun, cluster: Cluster, constants: Constants, memory_bytes: float
) -> Mapping[EdgePlacement, int | None]:
    """Find the smallest sufficient number of machines by placement; None if no number is sufficient.

    The machines are like the machines of `cluster`, with the same number of seeds per machine. The search
    is a bisection, because the memory needed per machine never grows with the number of machines.
    """
    if not 0 < memory_bytes < math.inf:
        raise ValueError(f"memory {memory_bytes / 1e9:g} GB: must be a number above 0")
    seeds = run.batch_size / cluster.machines

    def fits(placement: EdgePlacement, machines: int) -> bool:
        of_all = replace(run, batch_size=max(1, round(seeds * machines)))
        plans = predict(graph, of_all, replace(cluster, machines=machines), constants)
        return next(plan for plan in plans if plan.placement is placement).memory.total <= memory_bytes

    found: dict[EdgePlacement, int | None] = {}
    for placement in EdgePlacement:
        low, high = 0, 1  # `low` is too small, `high` may be sufficient
        while high <= _MOST and not fits(placement, high):
            low, high = high, 2 * high
        while high - low > 1 and high <= _MOST:
            middle = (low + high) // 2
            low, high = (low, middle) if fits(placement, middle) else (middle, high)
        found[placement] = high if high <= _MOST else None
    return found


_SERVERS_IN_FLIGHT = 4  # concurrent requests of a trainer
_KEPT = 2  # batches of a server per trainer: one is sent while the next is encoded


@dataclass(frozen=True)
class ServersPrediction:
    """A run with servers that store the whole graph. Trainers are the machines of the cluster."""

    servers: int  # machines with one process each, like those of the trainers
    batch_bytes: float  # of a trainer's share, and the bytes that it receives in a step
    sent_bytes: float  # by a server, in a step
    server_memory: float  # graph, and (batches at once + 2 x trainers) x batch
    trainer_memory: float  # batches and training; nothing of the graph
    server_cores: float  # seconds per step for which all cores of a server are busy
    server_network: float  # seconds per step for which the link of a server is busy
    trainer_cores: float
    trainer_network: float

    @property
    def step(self) -> float:
        """The time of a step: servers, links and trainers run in parallel, so it is that of the slowest."""
        return max(self.server_cores, self.server_network, self.trainer_cores, self.trainer_network)

    @property
    def bottleneck(self) -> str:
        """The slowest part, which determines the time of a step."""
        names = ("server_cores", "server_network", "trainer_cores", "trainer_network")
        return max(names, key=lambda name: float(getattr(self, name))).replace("_", " ")

    @property
    def enough(self) -> int:
        """The smallest number of servers for which trainers do not wait."""
        of_trainers = max(self.trainer_cores, self.trainer_network)
        return max(1, math.ceil(self.servers * max(self.server_cores, self.server_network) / of_trainers))


def predict_servers(
    graph: GraphSize, run: PlannedRun, cluster: Cluster, servers: int, constants: Constants
) -> ServersPrediction:
    """Predict a run on servers, each with the cores and the network of a machine of the cluster."""
    if servers < 1:
        raise ValueError(f"servers {servers}: must be 1 or more")
    seeds = max(1, round(run.batch_size / cluster.machines))
    of_trainer = replace(run, batch_size=seeds, remote_share=None)
    nodes = neighborhood(graph, run.fanouts, seeds, 1, None)
    batch = nodes.rows * (graph.row_bytes + 8) + nodes.edges * 8
    alone = predict(graph, of_trainer, replace(cluster, machines=1, cache_share=0), constants)[0]
    gradients = predict(graph, run, cluster, constants)[0].times
    share = cluster.machines / servers  # batches of a server per step
    copying = batch / constants.exchange_bytes_per_s / cluster.cores  # on each side
    sending = batch * seconds_per_byte(cluster)
    at_once = cluster.cores + _KEPT * cluster.machines
    return ServersPrediction(
        servers=servers,
        batch_bytes=batch,
        sent_bytes=share * batch,
        server_memory=alone.memory.topology + alone.memory.features + at_once * batch + PROCESS_BYTES,
        trainer_memory=_SERVERS_IN_FLIGHT * batch + alone.memory.training,
        server_cores=share * (alone.times.sampling + alone.times.gathering + copying),
        server_network=share * sending,
        trainer_cores=alone.times.training + alone.times.calls + copying,
        trainer_network=sending + gradients.gradient_network + gradients.gradient_messages,
    )


_PAGE = 4096
_PLANNED = 0.5  # share of the free memory for the planned cache; the rest is page cache


@dataclass(frozen=True)
class FromDisk:
    """A step on one machine with memory for the edges, but not for the features."""

    memory: float  # bytes of edges, batches and training
    cache: float  # remaining bytes of memory: half for the most frequent rows, half for the page cache
    nodes: float  # nodes of a batch
    read_rows: float  # rows of a batch that are in neither cache
    cold: float  # seconds of the disk for a batch while the caches are empty
    reading: float  # seconds of the disk for a batch
    step: float  # seconds: reading and the work of the cores overlap, and the slower one decides


def from_disk(
    graph: GraphSize, run: PlannedRun, cluster: Cluster, constants: Constants, memory_bytes: float
) -> FromDisk | None:
    """Predict training from disk on one machine of `cluster`, with the same number of seeds per machine.

    None if the edges do not fit in its memory. Rows on the same page share one random read; rows larger than
    a page also take the time to read them.
    """
    alone = replace(cluster, machines=1, cache_share=0.0)
    run = replace(run, batch_size=max(1, round(run.batch_size / cluster.machines)))
    whole = predict(graph, run, alone, constants)[0]
    taken = whole.memory.total - whole.memory.features
    room = memory_bytes - taken
    if room < 0:
        return None
    batch = neighborhood(graph, run.fanouts, run.batch_size, 1, None)
    planned = batch.here.most_likely(_PLANNED * room / max(1, graph.feature_bytes))
    features = max(1, graph.feature_bytes * graph.nodes)
    is_cached = min(1.0, (1 - _PLANNED) * room / features)
    rows = (batch.rows - planned) * (1 - is_cached) if graph.feature_bytes else 0.0
    pages = 1 + max(0, graph.feature_bytes - 1) / _PAGE  # pages of a row, for a random offset
    row_s = max(1 / constants.disk_reads_per_s, pages * _PAGE / constants.disk_bytes_per_s)
    reading, cold = (_reads(count, graph) * row_s for count in (rows, batch.rows))
    return FromDisk(taken, room, batch.rows, rows, cold, reading, max(whole.times.step, reading))


def _reads(rows: float, graph: GraphSize) -> float:
    """Return the expected number of pages, or of longer rows, that the rows of random nodes are on."""
    per_page = max(1.0, _PAGE / max(1, graph.feature_bytes))
    share = min(1.0, rows / graph.nodes)
    return graph.nodes / per_page * (1 - math.pow(1 - share, per_page))
