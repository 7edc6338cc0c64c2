"""Lightning's trainer over `khop.Loader`: every loop that it begins over a loader is a whole epoch."""

from __future__ import annotations

from pathlib import Path

import pytest
import pytorch_lightning as lightning
import torch
from pytorch_lightning.callbacks import ModelCheckpoint
from torch import Tensor

import khop
from support.small_folders import write_learnable_graph

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),  # khop's are threads
    pytest.mark.filterwarnings("ignore:.*LeafSpec"),  # Lightning's own use of torch
    pytest.mark.filterwarnings("ignore:Checkpoint directory .* exists"),
]
SIZE = 50  # of 360 seeds to train with and 120 to validate with: 8 steps and 3


class Recorder(lightning.LightningModule):
    """A model that notes the batches which it gets."""

    def __init__(self, graph: khop.Graph) -> None:
        super().__init__()
        self.graph = graph
        self.model = khop.models.SAGE.for_graph(graph, hidden=4, layers=1)
        self.training_batches: list[tuple[int, int]] = []  # epoch and step
        self.validations: list[list[Tensor]] = []  # of each, the seeds of every batch

    def train_dataloader(self) -> khop.Loader:
        return self._loader("train", shuffle=True)

    def val_dataloader(self) -> khop.Loader:
        return self._loader("val", shuffle=False)

    def _loader(self, split: str, *, shuffle: bool) -> khop.Loader:
        return khop.Loader(
            khop.NeighborSampler(self.graph, [2]),
            self.graph.split(split),
            SIZE,
            shuffle=shuffle,
            columns=["x"],
        )

    def training_step(self, batch: khop.Batch) -> Tensor:
        self.training_batches.append((batch.epoch, batch.step))
        return batch.global_mean(self.model(batch).square().sum(1))

    def on_validation_epoch_start(self) -> None:
        self.validations.append([])

    def validation_step(self, batch: khop.Batch) -> None:
        self.validations[-1].append(batch.seeds)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.01)


def fitted(
    graph: khop.Graph, folder: Path, resume: Path | None = None, *, every: int = 5, **settings: int
) -> Recorder:
    module = Recorder(graph)
    trainer = lightning.Trainer(
        **settings,
        max_epochs=3,
        num_sanity_val_steps=2,
        callbacks=[ModelCheckpoint(folder, "{step}", save_top_k=-1, every_n_train_steps=every)],
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, ckpt_path=resume)
    return module


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> khop.Graph:
    return khop.open_graph(write_learnable_graph(tmp_path_factory.mktemp("lightning") / "graph"))


def test_the_sanity_check_takes_nothing_from_the_first_validation(graph: khop.Graph, tmp_path: Path) -> None:
    module = fitted(graph, tmp_path)
    (seeds,) = graph.split("val").values()
    sanity, *validations = [torch.cat(batches) for batches in module.validations]
    assert torch.equal(sanity, seeds[: 2 * SIZE])
    assert len(validations) == 3
    assert all(torch.equal(found, seeds) for found in validations)
    assert module.training_batches == [(epoch, step) for epoch in range(3) for step in range(8)]


def test_a_limited_validation_sees_the_same_batches_in_every_epoch(graph: khop.Graph, tmp_path: Path) -> None:
    module = fitted(graph, tmp_path, limit_val_batches=2, limit_train_batches=3)
    (seeds,) = graph.split("val").values()
    assert [torch.cat(batches).tolist() for batches in module.validations] == [seeds[: 2 * SIZE].tolist()] * 4
    assert module.training_batches == [(epoch, step) for epoch in range(3) for step in range(3)]


@pytest.mark.parametrize(("every", "step"), [(5, 5), (5, 15), (8, 16)])  # the last one: between two epochs
def test_a_checkpoint_continues_with_the_next_batch(
    graph: khop.Graph, tmp_path: Path, every: int, step: int
) -> None:
    whole = fitted(graph, tmp_path, every=every)
    resumed = fitted(graph, tmp_path, tmp_path / f"step={step}.ckpt", every=every)
    assert resumed.training_batches == whole.training_batches[step:]
