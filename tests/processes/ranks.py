"""What ranks do in the tests: functions at the top of a module, so that a spawned process finds them."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import khop
from khop.batch import Batch
from khop.distributed.group import this_group

DEADLINE_S = 4.0


def misbehaves(rank: int, device: torch.device, how: str) -> None:
    """Exchange something every few moments; rank 1 does not come to the fourth time."""
    group = this_group()
    if how == "differ":
        group.agree({"seed": str(rank), "khop": "1"})
    for step in range(1000 if how == "endless" else 6):
        group.at("computing", 2, step)
        if (rank, step) == (1, 3):
            _misbehave(how)
        if how == "evaluates alone" and (rank, step) == (0, 3):
            group.meet("evaluating")
        time.sleep(0.02)
        with group.exchanging("exchanging losses", 2, step):
            group.gather(torch.tensor([float(rank)]))


def _misbehave(how: str) -> None:
    if how == "raise":
        raise KeyError("mine")
    if how == "input":
        raise ValueError("batch_size 0: must be positive")
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "hang":
        time.sleep(1000)


class Convolution(nn.Module):
    """A user's own module over a batch, which learns its sizes from the first one; it has no dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.LazyLinear(8), nn.LazyLinear(4)])

    def forward(self, batch: Batch) -> Tensor:
        h = batch["x"].double()
        for layer, block in zip(self.layers, batch.blocks, strict=True):
            sources, destinations = block.edge_index
            total = torch.zeros(block.num_dst, h.shape[1], dtype=h.dtype)
            total.index_add_(0, destinations, h[sources])
            h = layer(torch.cat([h[: block.num_dst], total], dim=1)).tanh()
        return h[batch.seed_index]


def own_loop(rank: int, device: torch.device, graph: khop.Graph, train: Tensor, out: str) -> None:
    """A loop of a user's own, with plain DDP and fewer seeds than ranks in each last step."""
    loader = khop.Loader(
        khop.NeighborSampler(graph, fanouts=[3, 3]),
        seeds=train,
        batch_size=10,
        shuffle=True,
        columns=["x"],
        seed_columns=["category"],
    )
    model = Convolution().double()
    khop.initialise(model, loader, seed=3)
    parallel = DistributedDataParallel(model) if torch.distributed.is_initialized() else model
    optimizer = torch.optim.SGD(parallel.parameters(), lr=0.1)
    losses = []
    for epoch in range(2):
        for batch in loader.epoch(epoch):
            each = F.cross_entropy(parallel(batch), batch.seed_column("category"), reduction="none")
            optimizer.zero_grad()
            batch.global_mean(each).backward()
            optimizer.step()
            total = this_group().gather(each.detach().sum())
            losses.append(float(total.sum()) / batch.num_global_seeds)
    parallel.train()
    score = None
    if graph.folder is not None:
        score = khop.evaluate(parallel, graph, split="val", fanouts=[-1, -1])
    result = {"losses": losses, "score": score, "is_training": parallel.training}
    Path(out, f"{rank}.json").write_text(json.dumps(result))
