"""What do layers in blocks gain, by each library of torch, in float32 and bfloat16?

Training steps of SAGE (mean, 3 layers of 256, Adam) on ready batches of [15,10,5], batch 1024. Every round
takes one step of each way in turn, forced, so that a slow minute of the machine hits all alike; the least
processor time and the least wall time of each way are compared. `torch` is the step without blocks. The last
figures are of the ways that the rule names for this machine.

usage: OMP_WAIT_POLICY=passive python benchmarks/layers.py [--graph products] [--rounds 20] [--rows 2048]
                                                           [--threads 2] [--slowest 4] [--untuned]
A way that takes more than `slowest` times the fastest one in its first step is left out of further rounds.
"""

from __future__ import annotations

import argparse
import time
from itertools import islice

import graphs
import torch
import torch.nn.functional as F
from harness import Figure, report
from torch import nn

import khop
from khop.batch import Batch
from khop.kernels.linear_blocks import Blocks, has_onednn
from khop.kernels.linear_choice import CHOICES, way_of_rule
from khop.process_tuning import tune_memory

Way = tuple[str, Blocks | None]  # precision, how layers are computed


class Steps:
    """Training steps on the same few batches, in any of the ways."""

    def __init__(self, graph: khop.Graph, count: int = 3) -> None:
        torch.manual_seed(0)
        self.model: nn.Module = khop.models.SAGE.for_graph(graph, hidden=256, layers=3)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-3)
        sampler = khop.NeighborSampler(graph, [15, 10, 5])
        loader = khop.Loader(
            sampler, graph.split("train"), 1024, shuffle=True, seed=0, columns=["x"], seed_columns=["y"]
        )
        batches = loader.epoch(0)
        self.batches: list[Batch] = list(islice(batches, count))
        batches.close()  # type: ignore[attr-defined]

    def seconds(self, number: int, way: Way) -> tuple[float, float]:
        """Processor and wall time of one step."""
        precision, blocks = way
        wall, processor = time.perf_counter(), time.process_time()
        with CHOICES.fixed(blocks):
            self._step(self.batches[number % len(self.batches)], precision == "bfloat16")
        return time.process_time() - processor, time.perf_counter() - wall

    def _step(self, batch: Batch, is_half: bool) -> None:
        with torch.autocast("cpu", torch.bfloat16, enabled=is_half):
            losses = F.cross_entropy(self.model(batch), batch.seed_column("y"), reduction="none")
        self.optimizer.zero_grad()
        batch.global_mean(losses.float()).backward()
        self.optimizer.step()


def name_of(way: Way) -> str:
    """As in KHOP_LINEAR."""
    precision, blocks = way
    return f"{precision}, {blocks or 'torch'}"


def ways_of(rows: int) -> list[Way]:
    """All that are compared, and this machine's choices."""
    libraries = ["blas", "onednn"] if has_onednn() else ["blas"]
    ways: list[Way] = [("float32", None), ("bfloat16", None), ("bfloat16", Blocks("blas", rows))]
    for library in libraries:
        ways.append(("float32", Blocks(library, rows)))  # type: ignore[arg-type]
        ways.append(("bfloat16", Blocks(library, rows, in_float32=True)))  # type: ignore[arg-type]
    return list(dict.fromkeys([*ways, chosen("float32"), chosen("bfloat16")]))


def chosen(precision: str) -> Way:
    """The way that the rule names on this machine."""
    return precision, way_of_rule(getattr(torch, precision))


def measured(steps: Steps, ways: list[Way], rounds: int, slowest: float) -> dict[Way, tuple[float, float]]:
    """The least processor and wall time of each way."""
    best = {way: steps.seconds(0, way) for way in ways}
    limit = slowest * min(processor for processor, _ in best.values())
    kept = [way for way in ways if best[way][0] <= limit]
    for number in range(rounds):
        for way in kept:
            found = steps.seconds(number, way)
            best[way] = (min(best[way][0], found[0]), min(best[way][1], found[1]))
    return best


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--graph", default="products", choices=sorted(graphs.SPECS))
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--rows", type=int, default=2048)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--slowest", type=float, default=4.0)
    parser.add_argument("--untuned", action="store_true", help="without tuning the allocator")
    given = parser.parse_args()
    if not given.untuned:
        tune_memory()
    torch.set_num_threads(given.threads)
    ways = ways_of(given.rows)
    steps = Steps(khop.open_graph(graphs.make(given.graph) / "graph"))
    best = measured(steps, ways, given.rounds, given.slowest)
    figures = []
    for way, (processor, wall) in best.items():
        of_torch = best[(way[0], None)]
        figures.append(Figure(f"step {name_of(way)}: processor time", round(1e3 * processor, 1), "ms"))
        figures.append(Figure(f"step {name_of(way)}: wall time", round(1e3 * wall, 1), "ms"))
        ratio = round(processor / of_torch[0], 3)
        figures.append(Figure(f"step {name_of(way)}, over torch's layers: processor time", ratio, "x"))
    single, half = chosen("float32"), chosen("bfloat16")
    ratio = round(best[single][0] / best[("float32", None)][0], 3)
    figures.append(Figure(f"float32 as chosen ({name_of(single)}), over torch's layers", ratio, "x"))
    ratio = round(best[half][0] / best[single][0], 3)
    figures.append(Figure(f"bfloat16 as chosen ({name_of(half)}), over float32 as chosen", ratio, "x"))
    report("layers", figures)


if __name__ == "__main__":
    main()
