"""Times of sampling, loading and training steps of one revision of khop, for `before_after.py`.

The first line of output has the names of the cases. Each line of input, a case and a turn, is answered with
the seconds of that turn. One thread samples and one computes.

usage: PYTHON benchmarks/revision_speed.py [--nodes 500000] [--edges 10000000] [--clock wall]
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from revision_tasks import latest
from torch.nn.functional import cross_entropy

import khop
from khop.draw import DrawKey, Purpose

NODE, EDGE = "node", ("node", "to", "node")
FANOUTS, BATCH_SIZE, LATEST, WIDTH, CLASSES = [15, 10, 5], 1024, 1 << 40, 100, 47
AT_ONCE = 8  # steps of a turn of loading
Clock = Callable[[], float]
CLOCKS: dict[str, Clock] = {"wall": time.perf_counter, "cpu": time.process_time}


def random_graph(home: Path, nodes: int, edges: int) -> Any:  # noqa: ANN401
    """A graph of skewed degrees with features, classes, times and weights."""
    generator = torch.Generator().manual_seed(0)
    names = torch.randperm(nodes, generator=generator)
    ends = [names[(torch.rand(edges, generator=generator) ** 2 * nodes).long()] for _ in range(2)]
    columns = {
        "time": torch.randint(LATEST, (edges,), generator=generator),
        "weight": torch.rand(edges, generator=generator),
    }
    table = khop.NodeTable(
        columns={
            "x": torch.randn(nodes, WIDTH, generator=generator),
            "kind": torch.randint(CLASSES, (nodes,), generator=generator),
        },
        splits={"train": torch.arange(nodes)},
        num_classes={"kind": CLASSES},
    )
    edge_table = khop.EdgeTable(ends[0], ends[1], columns)
    return khop.open_graph(
        khop.write_graph(home / "graph", {NODE: table}, {EDGE: edge_table}, sort_by="time")
    )


def sampling(clock: Clock, graph: Any, rule: Any, turn: int) -> float:  # noqa: ANN401
    """Seconds of one sample."""
    generator = torch.Generator().manual_seed(turn)
    times = None
    if isinstance(rule, khop.Temporal):
        times = {NODE: torch.randint(LATEST, (BATCH_SIZE,), generator=generator)}
    nodes = torch.randint(graph.num_nodes(NODE), (BATCH_SIZE,), generator=generator)
    seeds = khop.Seeds({NODE: nodes}, {NODE: torch.arange(BATCH_SIZE)}, times)
    sampler = khop.NeighborSampler(graph, FANOUTS, rule=rule)
    key = DrawKey.of(0, Purpose.HOP, 0, turn)
    started = clock()
    sampler.sample(seeds, key)
    return clock() - started


def loading(clock: Clock, loader: Any, turn: int) -> float:  # noqa: ANN401
    """Seconds of the first batches of an epoch, sampled ahead by one thread."""
    started = clock()
    batches = loader.epoch(turn)
    for _ in range(AT_ONCE):
        next(batches)
    seconds = clock() - started
    batches.close()
    return seconds


def stepping(clock: Clock, loader: Any, model: Any, optimizer: Any, turn: int) -> float:  # noqa: ANN401
    """Seconds of one training step, the batch's making aside."""
    batch = loader.batch(0, turn)
    started = clock()
    losses = cross_entropy(model(batch), batch.seed_column("kind"), reduction="none")
    optimizer.zero_grad(set_to_none=True)
    batch.global_mean(losses).backward()
    optimizer.step()
    return clock() - started


def training(clock: Clock, loader: Any, model: Any, home: Path, turn: int) -> float:  # noqa: ANN401
    """Seconds of an epoch of the trainer, which is evaluated at its end."""
    settings = khop.TrainerSettings(epochs=1, learning_rate=1e-3)
    task, out = khop.NodeClassification(NODE, "kind"), home / f"run-{turn}"
    trainer = khop.Trainer(model, task, loader, lambda: {"val": 0.0}, settings, out)
    started = clock()
    trainer.fit()
    return clock() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--nodes", type=int, default=500_000)
    parser.add_argument("--edges", type=int, default=10_000_000)
    parser.add_argument("--clock", default="wall", choices=list(CLOCKS))
    given = parser.parse_args()
    clock = CLOCKS[given.clock]
    torch.set_num_threads(1)
    name = "khop.process_tuning" if find_spec("khop.process_tuning") else "khop.process_memory"
    import_module(name).tune_memory()
    with tempfile.TemporaryDirectory() as home:
        graph = random_graph(Path(home), given.nodes, given.edges)
        rules = {
            "uniform": khop.Uniform(),
            "weighted": khop.Weighted("weight"),
            "temporal": khop.Temporal("time"),
            "temporal, latest": khop.Temporal("time", latest()),
        }
        cases: dict[str, Callable[[int], float]] = {
            f"sampling, {name}": partial(sampling, clock, graph, rule) for name, rule in rules.items()
        }
        sampler = khop.NeighborSampler(graph, FANOUTS)
        loader = khop.Loader(
            sampler,
            graph.split("train"),
            BATCH_SIZE,
            shuffle=True,
            columns=["x"],
            seed_columns=["kind"],
            threads=1,
        )
        model = khop.models.SAGE.for_graph(graph, hidden=256, layers=len(FANOUTS))
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
        cases["loader"] = partial(loading, clock, loader)
        cases["step"] = partial(stepping, clock, loader, model, optimizer)
        few = khop.Loader(
            sampler,
            graph.split("train")[NODE][: AT_ONCE * BATCH_SIZE // 4],
            BATCH_SIZE // 4,
            columns=["x"],
            seed_columns=["kind"],
            threads=1,
        )
        cases["trainer"] = partial(training, clock, few, model, Path(home))
        print(json.dumps(list(cases)), flush=True)
        for line in sys.stdin:
            case, turn = json.loads(line)
            print(cases[case](turn), flush=True)


if __name__ == "__main__":
    main()
