"""How long does a batch of links take end to end? Two cores, [8, 4], 2048 links, one binary negative each.

A bipartite graph of 500,000 users and as many items, 10 million edges each way, 64 float32 features of all
nodes (benchmarks/link_graphs.py). khop uses two sampler threads, DGL its DataLoader without workers (its
best on two cores) on two OpenMP threads, PyG + torch-sparse likewise. DGL excludes the links and their
reverses, PyG cannot; khop is measured with and without, and with exact negatives.

usage: python benchmarks/links.py [--graph bipartite] [--rounds 5] [--batches 20] [--peers dgl pyg]
"""

from __future__ import annotations

import argparse

import link_graphs
from common_arguments import PEERS
from harness import compare, contenders, interleaved, report

CASES = {
    "excluded": {"exclude": "edge+reverse"},
    "excluded, exact negatives": {"exclude": "edge+reverse", "exact": True},
    "subgraph expansion, excluded": {"exclude": "edge+reverse", "expansion": "subgraph"},
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--graph", default="bipartite", choices=sorted(link_graphs.SPECS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batches", type=int, default=20)
    parser.add_argument("--peers", nargs="*", default=["dgl", "dgl-tuned", "pyg"], choices=PEERS)
    arguments = parser.parse_args()
    base = {
        "graph": str(link_graphs.make(arguments.graph)),
        "batch_size": 2048,
        "batches": arguments.batches,
        "fanouts": [8, 4],
    }
    runners = contenders(arguments.peers)
    figures = compare("link loader", interleaved(runners, "links", base, arguments.rounds))
    for case, settings in CASES.items():
        khop = interleaved(runners[:1], "links", {**base, **settings}, arguments.rounds)
        figures += compare(f"link loader, {case}", khop)
    for runner in runners:
        runner.close()
    report("links", figures)


if __name__ == "__main__":
    main()
