"""Is a script as fast as the command? An epoch of `khop train`, of a script with `khop.tune_process()` and
of one without.

The same run three ways, each in a process of its own, one after another in every round: SAGE with two layers
on a random graph, float32, the cores and threads that each takes by itself. A figure is the median time of an
epoch without its evaluation, the first epoch left out.

usage: env -u OMP_WAIT_POLICY -u OMP_NUM_THREADS python benchmarks/script_speed.py [--nodes 200000]
                                                                                 [--rounds 3]
"""

from __future__ import annotations

import sys

import khop

if sys.argv[1:2] == ["tuned"]:
    khop.tune_process()

import argparse
import json
import subprocess
import tempfile
from pathlib import Path
from statistics import median, quantiles

import torch
from harness import Figure, report

FANOUTS, HIDDEN, BATCH, EPOCHS, WIDTH = [10, 10], 256, 1024, 4, 100
WAYS = ("command", "tuned", "plain")


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


def as_script(folder: str, out: str) -> None:
    """Train as a script does."""
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


def by_command(folder: str, out: str) -> list[str]:
    fanouts = ",".join(map(str, FANOUTS))
    options = ["--hidden", str(HIDDEN), "--batch-size", str(BATCH), "--epochs", str(EPOCHS)]
    hops = ["--fanouts", fanouts, "--evaluation-fanouts", fanouts]
    return ["khop", "train", "--graph", folder, "--out", out, *hops, *options]


def epoch_seconds(out: str) -> float:
    """The median over epochs but the first, of all but the evaluation."""
    lines = [json.loads(line)["seconds"] for line in Path(out, "metrics.jsonl").read_text().splitlines()]
    return median(line["total"] - line["evaluating"] for line in lines[1:])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nodes", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    found: dict[str, list[float]] = {way: [] for way in WAYS}
    with tempfile.TemporaryDirectory() as home:
        folder = f"{home}/graph"
        write(Path(folder), given.nodes)
        for number in range(given.rounds):
            for way in WAYS:
                out = f"{home}/{way}-{number}"
                script = [sys.executable, __file__, way, folder, out]
                command = by_command(folder, out) if way == "command" else script
                subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
                found[way].append(epoch_seconds(out))
    figures = []
    for way, name in zip(WAYS, ("khop train", "script, tune_process", "script, without"), strict=True):
        seconds = found[way]
        low, _, high = quantiles(seconds, n=4) if len(seconds) > 1 else [seconds[0]] * 3
        figures.append(Figure(f"epoch, {name}", round(median(seconds), 3), "s", spread=(low, high)))
    for way, name in (("tuned", "script with tune_process"), ("plain", "script without")):
        ratio = median(a / b for a, b in zip(found[way], found["command"], strict=True))
        figures.append(Figure(f"{name} over khop train", round(ratio, 3), "x"))
    report("script_speed", figures)


if __name__ == "__main__":
    if sys.argv[1:2] in (["tuned"], ["plain"]):
        as_script(*sys.argv[2:4])
    else:
        main()
