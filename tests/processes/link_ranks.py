"""What ranks do in the tests of links; apart from `ranks`, whose functions start without most of this."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from khop import GivenNegatives, Links, LinkSampler, LinkSplit, Loader, NegativeMode, UniformNegatives
from khop.batch import Batch
from khop.draw import Negatives
from khop.graph.store import GraphStore
from khop.run.build import prepare
from khop.run.read import RawRun
from khop.sampling.sampler import Trees
from khop.schema import EdgeType
from khop.training.step_clock import Unwatched
from support.small_link_folders import BUYS

BATCH_SIZE = 100
RUN: dict[str, object] = {
    "task": {"kind": "link-prediction", "target": "user buys item"},
    "sampler": {"fanouts": [{"user sees shop": 0, "*": 4}] * 2},
    "links": {"eval_negatives": 10, "exact": True},
    "model": {"hidden": 8, "dropout": 0.0},
    "training": {"epochs": 2, "batch_size": 150, "learning_rate": 0.03},
    "precision": "float64",
    "threads": 1,
    "compute_threads": 1,
}
BRIEF = {"epochs": 1, "batch_size": 150, "learning_rate": 0.03}
# By what a graph is called: runs of which there is one on it, and some on its parts.
RUNS: dict[str, dict[str, object]] = {
    "shop": RUN,
    "one-way": {
        **RUN,
        "training": BRIEF,
        "links": {"eval_negatives": 10, "exact": True, "negatives": "degree", "loss": {"kind": "bpr"}},
    },
    "diary": {
        **RUN,
        "training": BRIEF,
        "links": {"eval_negatives": 3},
        "sampler": {"fanouts": [4, 3], "time": "day"},
        "evaluation": {"fanouts": [4, 3]},
    },
}
RUNS["spotted"] = {**RUN, "training": BRIEF, "links": {"eval_negatives": 3, "spot_target": 7}}
RUNS["dated"] = {
    **RUN,
    "training": {**BRIEF, "batch_size": 40},
    "links": {"eval_negatives": 3},
    "sampler": {"fanouts": [4, 3]},
}
RUNS["dated-nodes"] = {
    **RUNS["dated"],
    "task": {"kind": "node-classification", "target": "user", "label": "kind"},
    "training": {"epochs": 2, "batch_size": 10, "learning_rate": 0.03},
}
PARTS = {
    "shop": ("ldg", 3),
    "one-way": ("hash", 4),
    "diary": ("random", 2),
    "spotted": ("random", 3),
    "dated": ("ldg", 3),
    "dated-nodes": ("hash", 3),
}
# Of each number of ranks the graphs whose parts they train on, and the placement.
Trained = dict[int, list[tuple[str, str]]]
TRAINED: Trained = {
    2: [
        ("shop", "features"),
        ("one-way", "whole"),
        ("diary", "features"),
        ("spotted", "all"),
        ("dated", "features"),
        ("dated-nodes", "features"),
    ],
    3: [("shop", "all"), ("one-way", "all"), ("diary", "all"), ("dated-nodes", "all")],
}
Account = dict[str, list[object]]  # of a step: position in the global order -> all that its link is and hears


def take_part(
    rank: int, device: torch.device, split: str, graphs: str, out: str, trained: list[tuple[str, str]]
) -> None:
    """Write down every step of an epoch of two loaders, and train runs of the command's."""
    accounts = [
        [account(batch, BUYS) for batch in loader.epoch(1)] for loader in loaders(LinkSplit.open(split))
    ]
    Path(out, f"{rank}.json").write_text(json.dumps(accounts))
    train(RUN, Path(graphs, "shop"), "features", Path(out, "run"))
    for name, placement in trained:
        train(RUNS[name], Path(graphs, f"{name}-parts"), placement, Path(out, f"{name}-{placement}"))


def train(values: Mapping[str, object], graph: Path, placement: str, out: Path) -> None:
    """A run from its first step to its last."""
    raw = RawRun({**values, "graph": str(graph), "parts": {"placement": placement}}, "run.toml")
    prepare(raw, out.parent).trainer(out, Unwatched()).fit()


def loaders(split: LinkSplit) -> list[Loader]:
    """Pairs beside the links of merged neighborhoods; triplets, in trees; the last step has fewer links."""

    def loader(graph: GraphStore, links: Links, negatives: Negatives, *, trees: Trees) -> Loader:
        sampler = LinkSampler(
            graph, [3, 2], negatives=negatives, exclude="edge+reverse", edge_ids=True, trees=trees
        )
        return Loader(sampler, links, BATCH_SIZE, shuffle=True, seed=5)

    return [
        loader(split.train, split.train_links, UniformNegatives(2, exact=True), trees="merged"),
        loader(split.val, split.val_links, GivenNegatives(NegativeMode.TRIPLET), trees="disjoint"),
    ]


def account(batch: Batch, edge_type: EdgeType) -> Account:
    """Of each link its ends and negatives, and the edges that each of these draws, by edge id."""
    rows, count = batch.links[edge_type], batch.links[edge_type].num_links
    others = rows.destination[count:].view(count, -1) if rows.negatives is None else rows.negatives
    return {
        str(int(rows.positions[link])): [
            end(batch, edge_type[0], rows.source[link]),
            end(batch, edge_type[2], rows.destination[link]),
            *(end(batch, edge_type[2], other) for other in others[link]),
        ]
        for link in range(count)
    }


def end(batch: Batch, node_type: str, row: Tensor) -> list[object]:
    """The node of a seed's row, and what the hop at the seeds drew for it, by edge type."""
    local = int(batch.sample.seed_index[node_type][row])
    drawn = {}
    for edge_type, adjacency in batch.blocks[-1].adjacencies.items():
        if edge_type[2] == node_type:
            assert adjacency.edge_ids is not None
            first, last = adjacency.indptr[local : local + 2].tolist()
            drawn[" ".join(edge_type)] = adjacency.edge_ids[first:last].tolist()
    return [int(batch.sample.nodes[node_type][local]), drawn]
