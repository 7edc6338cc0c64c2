"""How long does a batch take end to end: sample, features, labels? Two cores, [15,10,5], batch 1024.

khop uses two sampler threads; DGL its DataLoader without workers (its best on two cores) on two OpenMP
threads; PyG
+ torch-sparse likewise. Peers run twice: as they come, and with the allocator tuned (`dgl-tuned`: glibc
told to keep
large blocks and to ask for huge pages), which is their best.

usage: python benchmarks/loader.py [--graph products] [--rounds 5] [--batches 20] [--peers dgl pyg]
"""

from __future__ import annotations

from common_arguments import parsed
from harness import compare, contenders, interleaved, report


def main() -> None:
    arguments = parsed(__doc__)
    base = {
        "graph": arguments.graph,
        "batch_size": 1024,
        "batches": arguments.batches,
        "fanouts": [15, 10, 5],
    }
    runners = contenders(arguments.peers)
    figures = compare("loader float32", interleaved(runners, "loader", base, arguments.rounds))
    khop = runners[:1]
    float16 = interleaved(khop, "loader", {**base, "column": "x16"}, arguments.rounds)
    figures += compare("loader float16", float16)
    subgraph = interleaved(khop, "loader", {**base, "expansion": "subgraph"}, arguments.rounds)
    figures += compare("loader float32, subgraph expansion", subgraph)
    for runner in runners:
        runner.close()
    report("loader", figures)


if __name__ == "__main__":
    main()
