"""Lightning's Trainer over khop's loaders: sanity check, part of a validation, checkpoints, exact resume.

Each loop that Lightning begins over a loader is one epoch of it, so the two batches of the sanity check are
not missing from the first validation. Lightning saves and loads the state of the training loader itself.

python examples/lightning_trainer.py [--graph FOLDER] [--epochs 3] [--devices 2]
python examples/lightning_trainer.py --resume lightning/step=7.ckpt
"""

from __future__ import annotations

import argparse
import warnings
from pathlib import Path

import pytorch_lightning as lightning
import torch
import torch.nn.functional as F
from pytorch_lightning.callbacks import ModelCheckpoint
from torch import Tensor
from torchmetrics import MeanMetric

import khop

warnings.filterwarnings("ignore", ".*does not have many workers")  # khop's workers are threads


class Classifier(lightning.LightningModule):
    """GraphSAGE, its loaders, and the mean loss and accuracy of every epoch."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.graph = khop.open_graph(folder)
        self.label = khop.NodeClassification.of(self.graph.schema).label
        self.model = khop.models.SAGE.for_graph(self.graph, hidden=64, layers=2, dropout=0.0)
        self.loss, self.accuracy = MeanMetric(), MeanMetric()  # over the seeds of all devices

    def loader(self, split: str, *, shuffle: bool = False) -> khop.Loader:
        """Lightning asks for loaders when its processes have met: they share every batch."""
        sampler = khop.NeighborSampler(self.graph, fanouts=[5, 5])
        seeds, columns = self.graph.split(split), {"columns": ["x"], "seed_columns": [self.label]}
        return khop.Loader(sampler, seeds, batch_size=256, shuffle=shuffle, device=self.device, **columns)

    def train_dataloader(self) -> khop.Loader:
        return self.loader("train", shuffle=True)

    def val_dataloader(self) -> khop.Loader:
        return self.loader("val")

    def training_step(self, batch: khop.Batch) -> Tensor:
        losses = F.cross_entropy(self.model(batch), batch.seed_column(self.label), reduction="none")
        self.loss.update(losses.detach())
        return batch.global_mean(losses)

    def validation_step(self, batch: khop.Batch) -> None:
        self.accuracy.update((self.model(batch).argmax(1) == batch.seed_column(self.label)).float())

    def on_validation_epoch_end(self) -> None:
        accuracy = float(self.accuracy.compute())
        self.accuracy.reset()
        if not self.trainer.sanity_checking:
            loss = float(self.loss.compute())
            self.loss.reset()
            self.print(f"epoch {self.current_epoch}: loss {loss:.6f}, validation accuracy {accuracy:.4f}")

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=3e-3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--graph", type=Path, help="a graph folder; default: Debian's packages")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--devices", type=int, default=1, help="processes; default 1")
    parser.add_argument("--val-batches", type=int, help="batches of a validation; default: all")
    parser.add_argument("--resume", type=Path, help="a checkpoint to continue from")
    options = parser.parse_args()
    lightning.seed_everything(0, verbose=False)
    trainer = lightning.Trainer(
        max_epochs=options.epochs,
        limit_val_batches=options.val_batches or 1.0,
        accelerator="auto",
        devices=options.devices,
        strategy="ddp" if options.devices > 1 else "auto",
        callbacks=[ModelCheckpoint("lightning", "{step}", save_top_k=-1, every_n_train_steps=7)],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    folder = options.graph or khop.builtin_folder("debian", cache=Path("graphs"))
    trainer.fit(Classifier(folder), ckpt_path=options.resume)


if __name__ == "__main__":
    main()
