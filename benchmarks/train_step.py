"""How long does a training step take, loading included? SAGE mean, 3 layers of 256, Adam, float32, two cores.

[15,10,5], batch 1024, on the products-like graph. DGL trains the same model on blocks of its own loader.
PyG's layers compute all rows, as in its tutorials: torch-sparse gives no counts to trim by. The last is
khop's epoch time over that of the same steps on ready-made batches.

usage: python benchmarks/train_step.py [--graph products] [--rounds 3] [--batches 10]
                                       [--peers dgl dgl-tuned pyg]
"""

from __future__ import annotations

import statistics

from common_arguments import parsed
from harness import Figure, compare, contenders, interleaved, report


def main() -> None:
    arguments = parsed(__doc__)
    base = {
        "graph": arguments.graph,
        "batch_size": 1024,
        "batches": arguments.batches,
        "fanouts": [15, 10, 5],
    }
    runners = contenders(arguments.peers)
    figures = compare("training step float32", interleaved(runners, "train_step", base, arguments.rounds))
    khop = runners[0]
    bfloat16 = {**base, "precision": "bfloat16"}
    figures += compare(
        "training step bfloat16 autocast", interleaved([khop], "train_step", bfloat16, arguments.rounds)
    )
    overheads = []
    for number in range(arguments.rounds):
        settings = {**base, "round": number}
        ready = khop.run("train_step", {**settings, "ready": True})["value"]
        overheads.append(khop.run("train_step", settings)["value"] / ready)
    figures.append(
        Figure("epoch over the same with ready-made batches", round(statistics.median(overheads), 3), "x")
    )
    for runner in runners:
        runner.close()
    report("train_step", figures)


if __name__ == "__main__":
    main()
