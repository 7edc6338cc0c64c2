"""What does an epoch over a bag of words cost as a sparse column, over the same column as dense numbers?

A graph as large as a citation graph of physicists: 34,493 nodes, 495,924 edges, 8,415 words, 33 of them per
node on average and 8 times that for the longest. Node classification by SAGE (width 256, two layers, dropout
0.5, Adam), neighbors [10, 10], 1,024 seeds a step, with sampling and gathering. Every round takes the same
steps with each column in turn. Both columns are in memory.

usage: OMP_WAIT_POLICY=passive python benchmarks/sparse_columns.py [--rounds 3] [--steps 4] [--threads 2]
"""

from __future__ import annotations

import argparse
import tempfile
import time
from statistics import median

import khop
from khop.process_tuning import tune_before_torch

tune_before_torch()

import numpy as np  # noqa: E402
import torch  # noqa: E402
from harness import Figure, report  # noqa: E402
from scipy import sparse  # noqa: E402

NODES, EDGES, WORDS, PER_NODE, LONGEST = 34_493, 495_924, 8_415, 33, 264
CLASSES, BATCH = 5, 1024


def words() -> sparse.csr_array:
    """Return counts of words by node; few words are frequent."""
    random = np.random.default_rng(0)
    lengths = np.clip(random.lognormal(np.log(PER_NODE) - 0.2, 0.65, NODES), 1, LONGEST).astype(int)
    lengths[0] = LONGEST
    rows = np.repeat(np.arange(NODES), lengths)
    found = (WORDS * random.random(len(rows)) ** 2).astype(int)
    return sparse.csr_array((np.ones(len(rows), np.float32), (rows, found)), (NODES, WORDS))


def graph_of(home: str, column: object) -> khop.Graph:
    random = np.random.default_rng(1)
    ends = [torch.from_numpy(random.integers(0, NODES, EDGES // 2)) for _ in range(2)]
    edges = khop.EdgeTable(torch.cat(ends), torch.cat(ends[::-1]))
    labels = torch.from_numpy(random.integers(0, CLASSES, NODES))
    nodes = khop.NodeTable(NODES, {"x": column, "y": labels}, num_classes={"y": CLASSES})
    return khop.open_graph(khop.write_graph(home, {"author": nodes}, {("author", "knows", "author"): edges}))


class Epoch:
    """Steps of one graph, that go on from round to round."""

    def __init__(self, graph: khop.Graph, threads: int) -> None:
        torch.manual_seed(0)
        self.model = khop.models.SAGE.for_graph(graph, 256, 2, dropout=0.5)
        self.optimizer = torch.optim.Adam(self.model.parameters())
        sampler = khop.NeighborSampler(graph, [10, 10])
        every = torch.arange(NODES)
        self.loader = khop.Loader(sampler, every, BATCH, columns=["x"], seed_columns=["y"], threads=threads)
        self.loss = 0.0

    def seconds(self, number: int, steps: int) -> float:
        """Take steps of an epoch and return their seconds."""
        begun = time.perf_counter()
        for step, batch in enumerate(self.loader.epoch(number)):
            losses = torch.nn.functional.cross_entropy(
                self.model(batch), batch.seed_column("y"), reduction="none"
            )
            loss = batch.global_mean(losses)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.loss = loss.item()
            if step + 1 == steps:
                break
        return time.perf_counter() - begun


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--threads", type=int, default=2)
    given = parser.parse_args()
    matrix = words()
    with tempfile.TemporaryDirectory() as home:
        ways = {
            "sparse": Epoch(graph_of(f"{home}/sparse", matrix), given.threads),
            "dense": Epoch(graph_of(f"{home}/dense", matrix.toarray()), given.threads),
        }
        found: dict[str, list[float]] = {name: [] for name in ways}
        for number in range(given.rounds + 1):
            for name, way in ways.items():
                seconds = way.seconds(number, given.steps)
                if number:  # the first round reads the columns and measures block sizes
                    found[name].append(seconds)
        losses = {name: round(way.loss, 4) for name, way in ways.items()}
    steps = -(-NODES // BATCH)
    figures = [
        Figure(f"{name}: epoch of {steps} steps", round(median(times) / given.steps * steps, 1), "s")
        for name, times in found.items()
    ]
    ratios = sorted(a / b for a, b in zip(found["sparse"], found["dense"], strict=True))
    figures.append(
        Figure(
            "epoch of an 8,415-wide bag of words: sparse over dense",
            round(median(ratios), 3),
            "x",
            spread=(round(ratios[0], 3), round(ratios[-1], 3)),
            notes={"losses": losses, "entries": matrix.nnz},
        )
    )
    report("sparse_columns", figures)


if __name__ == "__main__":
    main()
