"""How long does it take to make a graph folder from an unsorted int64 edge list, and to open it?

Products-like graph: 123 M edges shuffled, features and labels in memory. Beside it PyG's own set-up of a
NeighborLoader
from the same unsorted list, which is what its user waits for in every process. Memory is the peak beyond
the input.

usage: python benchmarks/build.py [--graph products] [--rounds 3] [--peers pyg]
"""

from __future__ import annotations

import tempfile

from common_arguments import parsed
from harness import compare, contenders, interleaved, report


def main() -> None:
    arguments = parsed(__doc__)
    peers = [peer for peer in arguments.peers if peer == "pyg"]
    with tempfile.TemporaryDirectory() as scratch:
        settings = {"graph": arguments.graph, "scratch": scratch}
        # A process for each round: the peak of memory is a process's.
        figures = []
        answers: dict[str, list[dict[str, object]]] = {}
        for number in range(arguments.rounds):
            runners = contenders(peers)
            for name, found in interleaved(runners, "set_up", {**settings, "number": number}, 1).items():
                answers.setdefault(name, []).extend(found)
            for runner in runners:
                runner.close()
        figures += compare("folder from an unsorted edge list", answers)
        (khop,) = contenders([])
        figures += compare("opening a folder", interleaved([khop], "opening", settings, arguments.rounds))
        khop.close()
    report("build", figures)


if __name__ == "__main__":
    main()
