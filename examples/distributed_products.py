"""Worker mode, as in GLT's distributed tutorial: a graph that no machine has to hold as a whole.

The graph is cut into a part per machine; each process opens the part of its machine, draws neighbors and
collects features of all parts by exchange with the others, and trains by DistributedDataParallel. Batches
are those of one process on the uncut graph.

python examples/distributed_products.py [--graph FOLDER] [--epochs 3] [--procs 2] [--placement all]
torchrun --nnodes 2 --nproc-per-node 2 --rdzv-backend c10d --rdzv-endpoint HOST:29500 \
    examples/distributed_products.py --parts parts-of-products
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torchmetrics import MeanMetric  # pip install torchmetrics

import khop

FANOUTS = [15, 10, 5]
MACHINES = 2


def cut(rank: int, graph: Path, parts: Path) -> None:
    """Once, by rank 0; in earnest `khop partition` did it before, and each machine got a copy of its part."""
    if rank == 0 and not parts.exists():
        book = khop.partition_graph(graph, parts, MACHINES, fanouts=FANOUTS)
        print(f"cut into {book.num_parts} parts: {parts}", flush=True)
    if dist.is_initialized():
        dist.barrier()


def train(rank: int, device: torch.device, graph: Path, parts: Path, epochs: int, placement: str) -> None:
    cut(rank, graph, parts)
    opened = khop.open_graph(parts, placement=placement)  # "features" are in parts, or "all" is: edges too
    task = khop.NodeClassification.of(opened.schema)
    loader = khop.Loader(
        khop.NeighborSampler(opened, FANOUTS),
        opened.split("train"),
        batch_size=1024,  # over all processes; a process gets seeds of its own part first
        shuffle=True,
        columns=["x"],
        seed_columns=[task.label],
        device=device,
    )
    torch.manual_seed(0)  # the same weights in every process, and for any number of them
    model = khop.models.SAGE.for_graph(opened, hidden=128, layers=len(FANOUTS), dropout=0.0).to(device)
    parallel = DistributedDataParallel(model) if dist.is_initialized() else model
    optimizer = torch.optim.Adam(parallel.parameters(), lr=3e-3)
    for epoch in range(epochs):
        mean = MeanMetric().to(device)  # over the seeds of all processes
        for batch in loader.epoch(epoch):
            losses = F.cross_entropy(parallel(batch), batch.seed_column(task.label), reduction="none")
            optimizer.zero_grad()
            batch.global_mean(losses).backward()
            optimizer.step()
            mean.update(losses.detach())
        loss, score = float(mean.compute()), khop.evaluate(parallel, opened, split="val", fanouts=FANOUTS)
        if rank == 0:
            print(f"epoch {epoch}: loss {loss:.6f}, validation accuracy {score:.4f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--graph", type=Path, help="a graph folder; default: Debian's packages")
    parser.add_argument("--parts", type=Path, default=Path("parts"), help="its parts; made where missing")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--placement", default="features", help="what is in parts: features, or all")
    parser.add_argument("--procs", type=int, help="processes; default: one per GPU")
    options = parser.parse_args()
    graph = options.graph or khop.builtin_folder("debian", cache=Path("graphs"))
    arguments = (graph, options.parts, options.epochs, options.placement)
    khop.launch(train, procs=options.procs, arguments=arguments)


if __name__ == "__main__":
    main()
