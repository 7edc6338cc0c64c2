"""Hugging Face's accelerate around a plain loop over khop's loader: checkpoints and exact resume.

accelerate prepares model and optimizer. The loader needs no preparing: it shares every batch among the
processes that accelerate has started, and its state is saved and loaded beside theirs.

python examples/accelerate_loop.py [--graph FOLDER] [--epochs 3] [--state FOLDER]
accelerate launch --cpu --num_processes 2 examples/accelerate_loop.py
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import DistributedDataParallelKwargs, set_seed
from torchmetrics import MeanMetric  # pip install torchmetrics

import khop


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--graph", type=Path, help="a graph folder; default: Debian's packages")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--state", type=Path, default=Path("accelerate"), help="where checkpoints are")
    parser.add_argument("--every", type=int, default=7, help="steps between checkpoints (default 7)")
    parser.add_argument("--stop", type=int, help="stop after this many steps; the next call continues")
    options = parser.parse_args()

    set_seed(0)
    accelerator = Accelerator(kwargs_handlers=[DistributedDataParallelKwargs(broadcast_buffers=False)])
    graph = khop.open_graph(options.graph or khop.builtin_folder("debian", cache=Path("graphs")))
    task = khop.NodeClassification.of(graph.schema)
    loader = khop.Loader(
        khop.NeighborSampler(graph, fanouts=[5, 5]),
        graph.split("train"),
        batch_size=256,  # over all processes
        shuffle=True,
        columns=["x"],
        seed_columns=[task.label],
        device=accelerator.device,
    )
    model = khop.models.SAGE.for_graph(graph, hidden=64, layers=2, dropout=0.0)
    model, optimizer = accelerator.prepare(model, torch.optim.Adam(model.parameters(), lr=3e-3))
    accelerator.register_for_checkpointing(loader)
    if options.state.exists():
        accelerator.load_state(options.state)

    steps = 0
    while (epoch := loader.state_dict()["epoch"]) < options.epochs:
        mean = MeanMetric().to(accelerator.device)  # over the seeds of all processes
        for batch in loader:  # a whole epoch; the first after load_state is the rest of the saved one
            losses = F.cross_entropy(model(batch), batch.seed_column(task.label), reduction="none")
            optimizer.zero_grad()
            accelerator.backward(batch.global_mean(losses))
            optimizer.step()
            mean.update(losses.detach())
            steps += 1
            if steps % options.every == 0:
                accelerator.save_state(options.state)
            if steps == options.stop:
                return
        loss, score = (
            float(mean.compute()),
            khop.evaluate(accelerator.unwrap_model(model), graph, split="val"),
        )
        accelerator.print(f"epoch {epoch}: loss {loss:.6f}, validation accuracy {score:.4f}")


if __name__ == "__main__":
    main()
