"""What does an epoch of LightGCN cost, beside torch_geometric's LightGCN?

A graph of the size of Gowalla, of LightGCN's paper: 29,858 users, 40,981 items, 1,000,000 interactions with
few popular items. Embeddings 64 wide, three layers, BPR with one uniform negative per link, 8,192 links a
step, dense Adam, as in torch_geometric's example. khop draws every batch: all neighbors, or 10 of each node
and layer, without edges to exclude. torch_geometric propagates all rows in each step: by the edge index,
which it normalizes in every layer as in its example, and by a sparse CSR matrix normalized once. Before the
rounds, the three ways over all neighbors have to agree on a batch's scores. Every round takes the same number
of steps of each way in turn; a figure is the median step times the steps of an epoch, elapsed and of
processor time.

usage: OMP_WAIT_POLICY=passive python benchmarks/lightgcn.py [--rounds 3] [--steps 2] [--threads 2]
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from statistics import median

import khop
from khop.process_tuning import tune_before_torch

tune_before_torch()

import torch  # noqa: E402
from harness import Figure, report  # noqa: E402
from torch import Tensor  # noqa: E402
from torch_geometric.nn import LightGCN  # noqa: E402
from torch_geometric.nn.conv.gcn_conv import gcn_norm  # noqa: E402

USERS, ITEMS, LINKS, WIDTH, LAYERS, BATCH = 29_858, 40_981, 1_000_000, 64, 3, 8_192
STEPS = -(-LINKS // BATCH)
LIKES, LIKED_BY = ("user", "likes", "item"), ("item", "liked_by", "user")


def interactions() -> tuple[Tensor, Tensor]:
    """Return users and items of different links, in ascending order; few items have many."""
    draw = torch.Generator().manual_seed(0)
    users = torch.randint(USERS, (3 * LINKS // 2,), generator=draw)
    items = (ITEMS * torch.rand(3 * LINKS // 2, generator=draw) ** 2).long()
    pairs = torch.unique(users * ITEMS + items)
    pairs = pairs[torch.randperm(pairs.numel(), generator=draw)[:LINKS]].sort().values
    return pairs // ITEMS, pairs % ITEMS


UNITS: dict[str, Callable[[Step], float]] = {
    "s": lambda step: step.elapsed,
    "s of processor time": lambda step: step.processor,
}


class Sampled:
    """khop's steps, over drawn neighborhoods."""

    def __init__(self, graph: khop.Graph, links: tuple[Tensor, Tensor], fanout: int, threads: int) -> None:
        encoder = khop.models.LightGCN.for_graph(graph, WIDTH, LAYERS, ["user", "item"])
        self.model = khop.models.LinkPredictor(encoder, {LIKES: khop.models.Dot()})
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-3)
        self.task = khop.LinkPrediction("bpr")
        negatives = khop.UniformNegatives(1, "triplet")
        sampler = khop.LinkSampler(
            graph, [fanout] * LAYERS, rule=khop.SymmetricSum(), negatives=negatives, exclude=None
        )
        seeds = khop.Links({LIKES: torch.stack(links)})
        self.loader = khop.Loader(sampler, seeds, BATCH, shuffle=True, threads=threads)

    def take(self, epoch: int, steps: int) -> None:
        for batch in islice(self.loader.epoch(epoch), steps):
            loss = batch.global_mean(self.task.losses(self.model(batch), batch))
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()


class Whole:
    """torch_geometric's steps, over the whole graph, as in its example."""

    def __init__(self, links: tuple[Tensor, Tensor], edges: tuple[Tensor, Tensor | None]) -> None:
        self.edges, self.links = edges, torch.stack([links[0], links[1] + USERS])
        self.model = LightGCN(USERS + ITEMS, WIDTH, LAYERS, normalize=not edges[0].is_sparse_csr)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-3)

    def scores(self, pairs: Tensor) -> Tensor:
        return self.model(self.edges[0], pairs, self.edges[1])

    def take(self, epoch: int, steps: int) -> None:
        draw = torch.Generator().manual_seed(epoch)
        for index in torch.randperm(LINKS, generator=draw)[: steps * BATCH].split(BATCH):
            links = self.links[:, index]
            negatives = torch.randint(USERS, USERS + ITEMS, (index.numel(),), generator=draw)
            pairs = torch.cat([links, torch.stack([links[0], negatives])], dim=1)
            linked, others = self.scores(pairs).chunk(2)
            loss = self.model.recommendation_loss(linked, others, pairs.unique(), lambda_reg=0)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()


def normalized(edge_index: Tensor) -> Tensor:
    """Return the symmetric matrix of all edges with LightGCN's weights, as CSR."""
    nodes = USERS + ITEMS
    index, weight = gcn_norm(edge_index, None, nodes, add_self_loops=False)
    return torch.sparse_coo_tensor(index, weight, (nodes, nodes)).coalesce().to_sparse_csr()


def check(sampled: Sampled, wholes: list[Whole]) -> None:
    """Raise AssertionError unless all score the links of a batch alike, with the same embeddings."""
    rows = dict(sampled.model.encoder.named_parameters())
    (users,) = (of_type for of_type in rows.values() if of_type.shape[0] == USERS)
    (items,) = (of_type for of_type in rows.values() if of_type.shape[0] == ITEMS)
    batch = sampled.loader.batch(0, 0)
    links = batch.links[LIKES]
    ends = (batch.seed_nodes["user"][links.source], batch.seed_nodes["item"][links.destination])
    with torch.no_grad():
        ours = sampled.model(batch)[LIKES].pairs
        for whole in wholes:
            whole.model.embedding.weight.copy_(torch.cat([users, items]))
            theirs = whole.scores(torch.stack([ends[0], ends[1] + USERS]))
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)


@dataclass(frozen=True)
class Step:
    """The cost of a step, in seconds."""

    elapsed: float
    processor: float  # of all threads, which another process on the machine changes less


def rounds_of(ways: dict[str, Callable[[int, int], None]], steps: int) -> Iterator[dict[str, Step]]:
    """Yield the cost of a step by way, round after round."""
    number = 0
    while True:
        costs = {}
        for name, take in ways.items():
            begun = time.perf_counter(), time.process_time()
            take(number, steps)
            ended = time.perf_counter(), time.process_time()
            costs[name] = Step((ended[0] - begun[0]) / steps, (ended[1] - begun[1]) / steps)
        number += 1
        yield costs


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--threads", type=int, default=2)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    torch.manual_seed(0)
    links, load = interactions(), os.getloadavg()[0]
    ends = torch.stack([links[0], links[1] + USERS])
    edge_index = torch.cat([ends, ends.flip(0)], dim=1)
    with tempfile.TemporaryDirectory() as home:
        edges = {
            LIKES: khop.EdgeTable(*links, reverse_of=LIKED_BY),
            LIKED_BY: khop.EdgeTable(links[1], links[0], reverse_of=LIKES),
        }
        nodes = {"user": khop.NodeTable(USERS), "item": khop.NodeTable(ITEMS)}
        graph = khop.open_graph(khop.write_graph(f"{home}/graph", nodes, edges))
        every, ten = (Sampled(graph, links, fanout, given.threads) for fanout in (-1, 10))
        index, csr = Whole(links, (edge_index, None)), Whole(links, (normalized(edge_index), None))
        check(every, [index, csr])
        ways = {
            "khop, all neighbors": every.take,
            "khop, [10, 10, 10]": ten.take,
            "torch_geometric, edge index": index.take,
            "torch_geometric, CSR": csr.take,
        }
        found: list[dict[str, Step]] = []
        for costs in islice(rounds_of(ways, given.steps), 1, given.rounds + 1):  # the first one allocates
            found.append(costs)
            loads = [round(load, 1), round(os.getloadavg()[0], 1)]
            notes = {"threads": given.threads, "steps timed": len(found) * given.steps, "load": loads}
            figures = [figure_of(name, unit, found, notes) for unit in UNITS for name in ways]
            report(f"lightgcn_{given.threads}", figures)  # now: a run that is ended keeps its rounds


def figure_of(name: str, unit: str, found: list[dict[str, Step]], notes: dict[str, object]) -> Figure:
    """Return the median of an epoch by one way, with the least and the most."""
    seconds = sorted(STEPS * UNITS[unit](each[name]) for each in found)
    spread = (round(seconds[0], 1), round(seconds[-1], 1))
    of = f"LightGCN: epoch of {STEPS} steps ({name})"
    return Figure(of, round(median(seconds), 1), unit, None, None, spread, notes)


if __name__ == "__main__":
    main()
