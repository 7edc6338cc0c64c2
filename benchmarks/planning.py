"""Do runs take what `khop plan` says of them?

Two processes on two hosts (network namespaces of this machine, a core for each) train on a folder of two
parts, over links that carry 10 or 100 Mbit/s, or delay every packet by 5 ms, or neither; by both placements,
with a cache and without. Beside what they took stands the plan for the same graph, run and machines, whose
costs are measured first: rows, bytes, memory, the time of a step. Needs root, /dev/net/tun, iproute2.

usage: python benchmarks/planning.py [--links "10 Mbit/s" ...]      (default: all; others keep their figures)
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean
from typing import Any

import graphs
import torch
from harness import RESULTS, Figure, report
from two_hosts import RANKS, ranks, two_hosts
from worker import Counting

import khop
from khop.graph.partitions.book import read_book
from khop.graph.partitions.placements import LANES
from khop.process_tuning import tune_memory
from khop.run.planning.measure import measured
from khop.run.planning.prediction import Constants, EdgePlacement, Prediction, predict
from khop.run.planning.workload import Cluster, GraphSize, PlannedRun
from processes import WARM_UP

TRAINING_COLLECTIVES = 3  # one after another in each step: gradients, around the ring and back, and losses
NODE, EDGES, COLUMN, ROW_BYTES, CLASSES = "node", ("node", "to", "node"), "x", 400, 47
FREE_GBIT, FREE_DELAY_S = 20.0, 2e-5  # what a link between namespaces carries that nothing holds up
PLACEMENTS = {"features": EdgePlacement.REPLICATED, "all": EdgePlacement.PARTITIONED}


@dataclass(frozen=True)
class Work:
    """What is trained: GraphSAGE, a layer for each hop."""

    graph: str
    fanouts: list[int]
    seeds: int  # of each process and step
    hidden: int
    steps: int  # measured


LIGHT = Work("small", [10, 5], 128, 64, steps=24)
HEAVY = Work("medium", [15, 10, 5], 256, 256, steps=12)


@dataclass(frozen=True)
class Link:
    """What lies between the hosts."""

    name: str
    work: Work
    megabits_s: int | None = None
    delay_s: float = 0.0

    def cluster(self, cache_share: float) -> Cluster:
        """The two hosts, as the plan is asked about them."""
        gbit = self.megabits_s / 1000 if self.megabits_s else FREE_GBIT
        return Cluster(RANKS, 1, gbit, self.delay_s or FREE_DELAY_S, cache_share)

    def bottleneck(self, taken: Mapping[str, float]) -> str:
        """What took longest, by what was counted: bytes at the link's rate, messages, or the cores."""
        cluster = self.cluster(0)
        exchanges = max(taken["collectives"] / LANES, TRAINING_COLLECTIVES)
        seconds = {
            "network": taken["busier_bytes"] * 8e-9 / cluster.network_gbit,
            "latency": exchanges * 2 * cluster.latency_s,  # announced, and sent
            "cores": taken["cpu"],
        }
        return max(seconds, key=lambda kind: seconds[kind])


LINKS = [
    Link("10 Mbit/s", LIGHT, megabits_s=10),
    Link("100 Mbit/s", LIGHT, megabits_s=100),
    Link("5 ms", LIGHT, delay_s=0.005),
    Link("free", HEAVY),
]


@dataclass(frozen=True)
class Task:
    """What both ranks do in one run."""

    folder: str
    placement: str
    cache_share: float
    work: Work

    @classmethod
    def of_text(cls, text: str) -> Task:
        """As `json.dumps(asdict(task))` has it."""
        fields = json.loads(text)
        return cls(**{**fields, "work": Work(**fields["work"])})


def train(rank: int, device: torch.device, task: Task, out: str) -> None:
    """Train as a rank on a core of its own, and say what it took."""
    os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[rank]})
    torch.set_num_threads(1)
    tune_memory()
    graph = khop.open_graph(task.folder, placement=task.placement)
    loader = khop.Loader(
        khop.NeighborSampler(graph, task.work.fanouts),
        graph.split("train"),
        RANKS * task.work.seeds,
        shuffle=True,
        columns=[COLUMN],
        seed_columns=["y"],
        threads=1,
    )
    unmeasured = WARM_UP
    if task.cache_share:
        rows, nodes = graph.num_nodes(NODE) // RANKS, graph.num_nodes(NODE)
        loader.cache_features(round(task.cache_share * rows) * ROW_BYTES + nodes)
        unmeasured += len(loader)  # what is counted in the first epoch says too much of the first epoch
    model = khop.models.SAGE.for_graph(graph, hidden=task.work.hidden, layers=len(task.work.fanouts))
    observer, nothing = Counting(), khop.TrainerSettings(epochs=3)
    with tempfile.TemporaryDirectory() as run:
        classifying = khop.NodeClassification(NODE, "y")
        settings = (classifying, loader, lambda: {"val": 0.0}, nothing, Path(run, "run"), observer)
        khop.Trainer(model, *settings).rehearse(unmeasured + task.work.steps)
    traffic, cpu = observer.traffic[unmeasured:], observer.cpu[unmeasured - 1 :]
    found = {name: mean(step[name] for step in traffic) for name in traffic[0]}
    at = observer.at[unmeasured - 1 :]
    found |= {"step": (at[-1] - at[0]) / len(traffic), "cpu": (cpu[-1] - cpu[0]) / len(traffic)}
    Path(out).write_text(json.dumps({**found, "memory": _peak_bytes()}))


def _peak_bytes() -> int:
    """The most that was resident of this process."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM"))


def sent(taken: Mapping[str, float]) -> float:
    """Bytes of a batch."""
    return taken["row_bytes_sent"] + taken["id_bytes_sent"]


def sides(plan: Prediction, taken: Mapping[str, float]) -> dict[str, tuple[float, float, str]]:
    """What the plan says, and what was taken, by what it is."""
    traffic, times = plan.traffic, plan.times
    for_batch = (traffic.row_bytes + traffic.hop_bytes) / 1e3
    return {
        "memory": (plan.memory.total / 1e6, taken["memory"] / 1e6, "MB"),
        "rows of others": (traffic.remote_rows, taken["remote_rows"], "rows"),
        "rows fetched": (traffic.fetched_rows, taken["requested_rows"], "rows"),
        "bytes sent for a batch": (for_batch, sent(taken) / 1e3, "kB"),
        "the same of the busier host": (for_batch, taken["busier_bytes"] / 1e3, "kB"),
        "collectives": (traffic.collectives, taken["collectives"], ""),
        "cores": (times.cores * 1e3, taken["cpu"] * 1e3, "ms"),
        "step": (times.step * 1e3, taken["step"] * 1e3, "ms"),
    }


def figures_of(link: Link, constants: Constants) -> Iterator[Figure]:
    """Both sides of every placement, with and without a cache."""
    folder, size, remote_share = parts_of(link.work)
    work = link.work
    for cache_share in (0.0, 0.2) if work is LIGHT else (0.0,):
        run = PlannedRun(tuple(work.fanouts), RANKS * work.seeds, work.hidden, CLASSES, remote_share)
        plans = {plan.placement: plan for plan in predict(size, run, link.cluster(cache_share), constants)}
        for placement, planned in PLACEMENTS.items():
            of_ranks = taken(link, Task(str(folder), placement, cache_share, work))
            mean_of = {name: mean(of_rank[name] for of_rank in of_ranks) for name in of_ranks[0]}
            mean_of["busier_bytes"] = max(sent(of_rank) for of_rank in of_ranks)
            case = f"{link.name}, {placement}, cache {cache_share:g}"
            notes = {
                "planned bottleneck": plans[planned].times.bottleneck,
                "bottleneck": link.bottleneck(mean_of),
            }
            for what, (plan, found, unit) in sides(plans[planned], mean_of).items():
                figure = Figure(
                    f"{case}: {what}", round(found, 2), unit, notes={**notes, "plan": round(plan, 2)}
                )
                print(
                    f"{figure.figure:<52} {found:10.1f} plan {plan:10.1f} {unit}", file=sys.stderr, flush=True
                )
                yield figure


def parts_of(work: Work) -> tuple[Path, GraphSize, float]:
    """The folder of two parts, and what the plan is told of it."""
    whole = graphs.make(work.graph) / "graph"
    parts = graphs.parts(whole, RANKS, work.fanouts, RANKS * work.seeds)
    share = read_book(parts).quality.remote_share
    assert share is not None
    graph = khop.open_graph(whole)
    edges = graph.csc(EDGES).indices.numel()
    return parts, GraphSize(graph.num_nodes(NODE), edges, ROW_BYTES), share


def taken(link: Link, task: Task) -> Sequence[Mapping[str, Any]]:
    """What a run took, by rank."""
    with two_hosts(delay_s=link.delay_s) as hosts:
        for host in hosts if link.megabits_s else ():
            host.limit(link.megabits_s)
        return ranks(hosts, "planning.py", "--task", json.dumps(asdict(task)))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = [link.name for link in LINKS]
    parser.add_argument("--links", nargs="+", default=names, choices=names)
    parser.add_argument("--task", help=argparse.SUPPRESS)  # of a rank
    parser.add_argument("out", nargs="?", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.task:
        khop.launch(train, arguments=(Task.of_text(arguments.task), arguments.out), device="cpu")
        return
    torch.set_num_threads(1)
    constants = measured()
    print(constants, file=sys.stderr, flush=True)
    file = RESULTS / "planning.json"
    kept = json.loads(file.read_text())["figures"] if file.exists() else []
    figures = {figure["figure"]: Figure(**figure) for figure in kept}
    for link in LINKS:
        if link.name in arguments.links:
            figures |= {figure.figure: figure for figure in figures_of(link, constants)}
    report("planning", list(figures.values()))


if __name__ == "__main__":
    main()
