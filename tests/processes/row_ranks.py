"""What ranks do with embeddings in the tests, and what their exchanges send."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, distributed
from torch.nn.parallel import DistributedDataParallel

import khop
from khop.distributed.processes.group import this_group
from khop.models.node_embedding import EmbeddingUpdate
from khop.training.step_clock import Observer, Unwatched
from support.small_rated import ITEM

SENDS = {"all_gather": 1, "all_to_all_single": 1, "all_reduce": 0, "broadcast": 0}  # where the tensor stands


@contextmanager
def counting() -> Iterator[list[int]]:
    """The bytes of every tensor that khop gives to torch to exchange."""
    sizes: list[int] = []
    before = {name: getattr(distributed, name) for name in SENDS}

    def counted(name: str) -> object:
        def call(*args: object, **kwargs: object) -> object:
            sizes.append(args[SENDS[name]].nbytes)  # type: ignore[attr-defined]
            return before[name](*args, **kwargs)

        return call

    for name in SENDS:
        setattr(distributed, name, counted(name))
    try:
        yield sizes
    finally:
        for name, function in before.items():
            setattr(distributed, name, function)


def own_loop(graph: khop.Graph, kind: EmbeddingUpdate) -> dict[str, object]:
    """A loop of a user's own: plain DDP, Adam for parameters, RowAdam for rows; the last steps are small."""
    sampler = khop.NeighborSampler(graph, [4, 2])
    loader = khop.Loader(
        sampler, {ITEM: graph.split("train")[ITEM]}, 33, shuffle=True, columns=["x"], seed_columns=["kind"]
    )
    torch.manual_seed(3)
    model = khop.models.SAGE.for_graph(graph, hidden=8, embedding=5, embedding_update=kind).double()
    parallel = DistributedDataParallel(model) if distributed.is_initialized() else model
    adam = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=0.05)
    rows = khop.RowAdam(model, lr=0.05)
    losses, sent = [], []
    for epoch in range(2):
        for batch in loader.epoch(epoch):
            each = F.cross_entropy(parallel(batch), batch.seed_column("kind"), reduction="none")
            for optimizer in (adam, rows):
                optimizer.zero_grad()
            batch.global_mean(each).backward()
            adam.step()
            with counting() as sizes:
                rows.step()
            sent.append(sum(sizes))
            total = this_group().gather(each.detach().sum())
            losses.append(float(total.sum()) / batch.num_global_seeds)
    score = khop.evaluate(parallel, graph, split="val")
    with khop.models.gathered(model):
        table: Tensor = model.state_dict()["encoder.tables.node:user.weight"]
    return {"losses": losses, "score": score, "sent": sent, "rows": table[:60].tolist()}


class Preempted(Unwatched):
    """Sends the last rank SIGTERM in the third epoch."""

    def stepped(self, epoch: int, step: int, loss: float) -> None:
        group = this_group()
        if (epoch, step, group.rank) == (2, 1, group.world_size - 1):
            signal.raise_signal(signal.SIGTERM)


def trained(
    graph: khop.Graph, kind: EmbeddingUpdate, out: Path, epochs: int, observer: Observer | None = None
) -> None:
    """A run of the trainer's, which goes on where there is one."""
    torch.manual_seed(3)
    model = khop.models.SAGE.for_graph(graph, hidden=8, embedding=5, embedding_update=kind)
    loader = khop.Loader(
        khop.NeighborSampler(graph, [4, 2]),
        {ITEM: graph.split("train")[ITEM]},
        33,
        shuffle=True,
        columns=["x"],
        seed_columns=["kind"],
    )
    settings = khop.TrainerSettings(
        epochs,
        0.05,
        precision="float64",
        checkpoints=khop.CheckpointPolicy(steps=2),
        schedule=khop.Schedule(warmup=3),
    )
    task = khop.NodeClassification(ITEM, "kind")
    trainer = khop.Trainer(
        model,
        task,
        loader,
        lambda: {"val": khop.evaluate(model, graph, split="val")},
        settings,
        out,
        observer,
    )
    if (out / "checkpoints" / "last").exists():
        trainer.resume()
    trainer.fit()


def both_kinds(rank: int, device: torch.device, folder: str, large: str, out: str, epochs: int) -> None:
    """Everything above, of both kinds and on a graph with many more users."""
    graph = khop.open_graph(folder)
    kinds: tuple[EmbeddingUpdate, EmbeddingUpdate] = ("sparse", "sharded")
    found = {kind: own_loop(graph, kind) for kind in kinds}
    found |= {f"large {kind}": own_loop(khop.open_graph(large), kind) for kind in kinds}
    try:
        khop.models.NodeEmbedding(10, 3, "sharded").state_dict()
    except ValueError as error:
        found["state of a part"] = str(error)
    Path(out, f"{rank}.json").write_text(json.dumps(found))
    for kind in kinds:
        trained(graph, kind, Path(out).parent / kind, epochs)
    try:
        trained(graph, "sharded", Path(out).parent / "preempted", 4, Preempted() if epochs < 4 else None)
    except khop.Terminated:
        Path(out, f"{rank}.terminated").touch()
