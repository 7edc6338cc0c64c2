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

import subprocess
from statistics import median

from common_arguments import Arguments, parsed
from harness import ROOT, Figure, Settings, compare, contenders, interleaved, report

CASES = (
    ("sampling [15,10,5] subgraph", [15, 10, 5], "subgraph"),
    ("sampling [15,10,5] layered", [15, 10, 5], "layered"),
    ("sampling [25,10] subgraph", [25, 10], "subgraph"),
    ("sampling [25,10] layered", [25, 10], "layered"),
)


def thread_ratios(arguments: Arguments) -> list[Figure]:
    """Throughput of two threads over one: of khop, of the bare C++ loop over the same kernels, and one over
    the other."""
    (khop,) = contenders([])
    settings = {
        "graph": arguments.graph,
        "batch_size": 1024,
        "batches": 2 * arguments.batches,
        "fanouts": [15, 10, 5],
        "expansion": "subgraph",
    }
    program = native_program()
    times: dict[str, list[float]] = {"khop 1": [], "bare 1": [], "khop 2": [], "bare 2": []}
    for _ in range(3 * arguments.rounds):  # cheap, and a ratio of two noisy numbers needs them
        for threads in (1, 2):
            times[f"bare {threads}"].append(bare_ms(program, settings, threads))
            answer = khop.run("shared_sampling", {**settings, "threads": threads})
            times[f"khop {threads}"].append(answer["value"])
    khop.close()
    notes = {name: round(median(of_kind), 3) for name, of_kind in times.items()}
    own, bare = (notes[f"{name} 1"] / notes[f"{name} 2"] for name in ("khop", "bare"))
    figure = "sampling throughput, 2 threads over 1"
    return [
        Figure(figure, round(own, 3), "x", notes=notes),
        Figure(f"{figure} (bare C++ loop)", round(bare, 3), "x", "bare", round(own / bare, 3)),
        Figure("sampling, bare C++ loop over the same kernels", notes["bare 1"], "ms/batch", "bare"),
    ]


def native_program() -> str:
    """The path of benchmarks/native, built."""
    built = subprocess.run(
        [ROOT / "scripts" / "build-native-benchmark"], check=True, capture_output=True, text=True
    )
    return built.stdout.strip()


def bare_ms(program: str, settings: Settings, threads: int) -> float:
    """ms per batch of the core alone."""
    numbers = (settings["batch_size"], settings["batches"], threads, 1)
    command = [program, "sampling", f"{settings['graph']}/graph", *map(str, numbers)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


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
    report("sampling", [*figures, *thread_ratios(arguments)])


if __name__ == "__main__":
    main()
