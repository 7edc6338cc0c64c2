"""The options that every benchmark has."""

from __future__ import annotations

import argparse
from dataclasses import dataclass

import graphs

PEERS = ("dgl", "dgl-tuned", "pyg", "pyg-tuned")


@dataclass(frozen=True)
class Arguments:
    """What a benchmark was asked to run."""

    graph: str  # folder
    rounds: int
    batches: int
    peers: tuple[str, ...]


def parsed(description: str | None) -> Arguments:
    """The command line; makes the graph if it is not there yet."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--graph", default="products", choices=sorted(graphs.SPECS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batches", type=int, default=20)
    parser.add_argument("--peers", nargs="*", default=["dgl", "dgl-tuned", "pyg"], choices=PEERS)
    given = parser.parse_args()
    return Arguments(str(graphs.make(given.graph)), given.rounds, given.batches, tuple(given.peers))
