"""Predicted memory, traffic and time of a run whose batches are made by servers."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from khop.planning.constants import Constants
from khop.planning.neighborhood import neighborhood
from khop.planning.prediction import PROCESS_BYTES, predict, seconds_per_byte
from khop.planning.workload import Cluster, GraphSize, Run

_IN_FLIGHT = 4  # requests that a trainer has under way
_KEPT = 2  # batches of a server per trainer: one that is sent, and one that is encoded


@dataclass(frozen=True)
class ServersPrediction:
    """A run with servers that hold the whole graph. Trainers are the machines of the cluster."""

    servers: int  # machines with one process each, like those of the trainers
    batch_bytes: float  # of a trainer's share, and the bytes that it receives in a step
    sent_bytes: float  # by a server, in a step
    server_memory: float  # graph, and (batches at once + 2 x trainers) x batch
    trainer_memory: float  # batches and training; nothing of the graph
    server_cores: float  # seconds in which all cores of a server are busy for a step
    server_network: float  # seconds in which the link of a server is busy for a step
    trainer_cores: float
    trainer_network: float

    @property
    def step(self) -> float:
        """The time of a step: servers, links and trainers work in parallel, and the slowest decides."""
        return max(self.server_cores, self.server_network, self.trainer_cores, self.trainer_network)

    @property
    def bottleneck(self) -> str:
        """The part that takes the time of the step."""
        names = ("server_cores", "server_network", "trainer_cores", "trainer_network")
        return max(names, key=lambda name: float(getattr(self, name))).replace("_", " ")

    @property
    def enough(self) -> int:
        """The number of servers with which trainers do not wait for them."""
        of_trainers = max(self.trainer_cores, self.trainer_network)
        return max(1, math.ceil(self.servers * max(self.server_cores, self.server_network) / of_trainers))


def predict_servers(
    graph: GraphSize, run: Run, cluster: Cluster, servers: int, constants: Constants
) -> ServersPrediction:
    """Predict a run on servers, each with the cores and the network of a machine of the cluster."""
    if servers < 1:
        raise ValueError(f"servers {servers}: must be 1 or more")
    seeds = max(1, round(run.batch_size / cluster.machines))
    of_trainer = replace(run, batch_size=seeds, remote_share=None)
    nodes = neighborhood(graph, run.fanouts, seeds, 1, None)
    batch = nodes.rows * (graph.feature_bytes + 8) + nodes.edges * 8
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
        trainer_memory=_IN_FLIGHT * batch + alone.memory.training,
        server_cores=share * (alone.times.sampling + alone.times.gathering + copying),
        server_network=share * sending,
        trainer_cores=alone.times.training + alone.times.calls + copying,
        trainer_network=sending + gradients.gradient_network + gradients.gradient_messages,
    )
