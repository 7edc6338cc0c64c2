"""Is a script as fast as the command, idle and on a busy machine?

The same run as `khop train` and as a script with `khop.Loader`, `khop.Trainer` and `khop.launch(procs=1)`:
SAGE with two layers on a random graph, float32. And a torch_geometric script with the drop-in loader and
small batches, as it stands and with OMP_WAIT_POLICY=passive exported. Both scripts import torch first and
set nothing up. Each run is a process, one after another in every round, without and with LOAD other processes
that keep a core busy each. A figure is the median time of an epoch without its evaluation, the first epoch
left out.

usage: env -u OMP_WAIT_POLICY -u OMP_NUM_THREADS python benchmarks/script_speed.py [--nodes 100000]
                                                                                 [--rounds 3] [--load 2]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median, quantiles
from time import perf_counter

import torch
from harness import Figure, report

import khop

FANOUTS, HIDDEN, BATCH, SMALL_BATCH, EPOCHS, WIDTH = [10, 10], 256, 1024, 128, 4, 100
NAMES = {
    "command": "khop train",
    "script": "script with khop.Loader",
    "passive": "PyG script, OMP_WAIT_POLICY=passive",
    "pyg": "PyG script",
}
RATIOS = {"script": "command", "pyg": "passive"}


def write(path: Path, nodes: int) -> None:
    random = torch.Generator().manual_seed(0)
    order = torch.randperm(nodes, generator=random)
    columns = {
        "x": torch.randn(nodes, WIDTH, generator=random),
        "label": torch.randint(40, (nodes,), generator=random),
    }
    train, val, test, _ = order.tensor_split([nodes // 2, nodes // 2 + 1000, nodes // 2 + 2000])
    splits = {"train": train, "val": val, "test": test}
    table = khop.NodeTable(nodes, columns, splits, {"label": 40})
    ends = torch.randint(nodes, (2, 20 * nodes), generator=random)
    khop.write_graph(path, {"node": table}, {("node", "to", "node"): khop.EdgeTable(*ends)})


def train(rank: int, device: torch.device, folder: str, out: str) -> None:
    """Train as a script of khop does."""
    graph = khop.open_graph(folder)
    torch.manual_seed(0)
    model = khop.models.SAGE.for_graph(graph, hidden=HIDDEN, layers=2, dropout=0.5)
    sampler = khop.NeighborSampler(graph, FANOUTS)
    loader = khop.Loader(
        sampler, graph.split("train"), BATCH, shuffle=True, columns=["x"], seed_columns=["label"]
    )
    trainer = khop.Trainer(
        model,
        khop.NodeClassification("node", "label"),
        loader,
        evaluate=lambda: {
            split: khop.evaluate(model, graph, split=split, fanouts=FANOUTS) for split in ("val", "test")
        },
        settings=khop.TrainerSettings(EPOCHS),
        out=Path(out),
    )
    trainer.fit()


def train_pyg(folder: str, out: str) -> None:
    """Train as a script of torch_geometric does, and write the seconds of each epoch as the trainer does."""
    from torch_geometric.nn import GraphSAGE

    from khop.pyg import NeighborLoader

    graph = khop.open_graph(folder)
    data = khop.graph_to_pyg(graph)
    nodes = torch.arange(30 * SMALL_BATCH)
    loader = NeighborLoader(
        data, FANOUTS, input_nodes=nodes, batch_size=SMALL_BATCH, shuffle=True, num_workers=2
    )
    model = GraphSAGE(WIDTH, HIDDEN, 2, 40, dropout=0.5)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    lines = []
    for _ in range(EPOCHS):
        start = perf_counter()
        for batch in loader:
            optimizer.zero_grad()
            output = model(batch.x, batch.edge_index)[: batch.batch_size]
            torch.nn.functional.cross_entropy(output, batch.label[: batch.batch_size]).backward()
            optimizer.step()
        lines.append({"seconds": {"total": perf_counter() - start, "evaluating": 0}})
    Path(out).mkdir()
    Path(out, "metrics.jsonl").write_text("\n".join(map(json.dumps, lines)))


def command_line(way: str, folder: str, out: str) -> list[str]:
    if way != "command":
        return [sys.executable, __file__, way, folder, out]
    fanouts = ",".join(map(str, FANOUTS))
    options = ["--hidden", str(HIDDEN), "--batch-size", str(BATCH), "--epochs", str(EPOCHS)]
    hops = ["--fanouts", fanouts, "--evaluation-fanouts", fanouts]
    return [sys.executable, "-m", "khop", "train", "--graph", folder, "--out", out, *hops, *options]


def epoch_seconds(out: str) -> float:
    """The median over epochs but the first, of all but the evaluation."""
    lines = [json.loads(line)["seconds"] for line in Path(out, "metrics.jsonl").read_text().splitlines()]
    return median(line["total"] - line["evaluating"] for line in lines[1:])


@contextmanager
def busy(processes: int) -> Iterator[None]:
    """Keep this number of cores busy with other processes."""
    running = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(processes)]
    try:
        yield
    finally:
        for process in running:
            process.kill()
            process.wait()


def measured(folder: str, home: str, rounds: int, load: int) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {way: [] for way in NAMES}
    with busy(load):
        for number in range(rounds):
            for way, seconds in found.items():
                out = f"{home}/{way}-{load}-{number}"
                own = {"OMP_WAIT_POLICY": "passive"} if way == "passive" else {}
                command = command_line(way, folder, out)
                subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env={**os.environ, **own})
                seconds.append(epoch_seconds(out))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nodes", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--load", type=int, default=2)
    given = parser.parse_args()
    figures = []
    with tempfile.TemporaryDirectory() as home:
        folder = f"{home}/graph"
        write(Path(folder), given.nodes)
        for load in (0, given.load):
            found = measured(folder, home, given.rounds, load)
            state = f"load {load}" if load else "idle"
            for way, seconds in found.items():
                low, _, high = quantiles(seconds, n=4) if len(seconds) > 1 else [seconds[0]] * 3
                name = f"epoch, {NAMES[way]}, {state}"
                figures.append(Figure(name, round(median(seconds), 3), "s", spread=(low, high)))
            for way, base in RATIOS.items():
                ratio = median(a / b for a, b in zip(found[way], found[base], strict=True))
                figures.append(Figure(f"{NAMES[way]} over {NAMES[base]}, {state}", round(ratio, 3), "x"))
    report("script_speed", figures)


if __name__ == "__main__":
    if sys.argv[1:2] == ["script"]:
        khop.launch(train, procs=1, arguments=tuple(sys.argv[2:4]))
    elif sys.argv[1:2] in (["pyg"], ["passive"]):
        train_pyg(*sys.argv[2:4])
    else:
        main()
