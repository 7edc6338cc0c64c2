"""How long does sampling one batch take? khop against DGL (layered expansion) and PyG + torch-sparse
(subgraph).

Products-like graph, batch 1024, without replacement, int64 edge list given by the user (khop stores int32
where ids
fit), no edge ids, one thread unless the figure says otherwise. Rounds are interleaved; a figure is the
median over
rounds of the median over batches.

usage: python benchmarks/sampling.py [--graph products] [--rounds 5] [--batches 20] [--peers dgl pyg]
"""

from __future__ import annotations

from common_arguments import Arguments, parsed
from harness import Figure, compare, contenders, interleaved, report

CASES = (
    ("sampling [15,10,5] subgraph", [15, 10, 5], "subgraph"),
    ("sampling [15,10,5] layered", [15, 10, 5], "layered"),
    ("sampling [25,10] subgraph", [25, 10], "subgraph"),
    ("sampling [25,10] layered", [25, 10], "layered"),
)


def thread_ratio(arguments: Arguments) -> Figure:
    """Throughput of two threads over one, khop alone."""
    (khop,) = contenders([])
    base = {
        "graph": arguments.graph,
        "batch_size": 1024,
        "batches": arguments.batches,
        "fanouts": [15, 10, 5],
    }
    ratios = []
    for _ in range(arguments.rounds):
        one, two = (khop.run("sampling", {**base, "threads": n, "expansion": "subgraph"}) for n in (1, 2))
        ratios.append(one["value"] / two["value"])
    khop.close()
    ratios.sort()
    return Figure("sampling throughput, 2 threads over 1", round(ratios[len(ratios) // 2], 3), "x")


def main() -> None:
    arguments = parsed(__doc__)
    runners = contenders(arguments.peers)
    figures = []
    for figure, fanouts, expansion in CASES:
        settings = {
            "graph": arguments.graph,
            "batch_size": 1024,
            "batches": arguments.batches,
            "fanouts": fanouts,
            "expansion": expansion,
        }
        figures += compare(figure, interleaved(runners, "sampling", settings, arguments.rounds))
    for runner in runners:
        runner.close()
    report("sampling", [*figures, thread_ratio(arguments)])


if __name__ == "__main__":
    main()
