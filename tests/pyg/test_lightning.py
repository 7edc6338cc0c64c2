"""Lightning's trainer over khop's loaders: torch_geometric's data modules, and modules of one's own."""

from __future__ import annotations

from typing import Any

import pytest
import pytorch_lightning as lightning
import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy
from torch_geometric.data import Data
from torch_geometric.data.lightning import LightningLinkData, LightningNodeData
from torch_geometric.data.lightning.datamodule import LightningDataModule
from torch_geometric.nn import GraphSAGE

from khop.pyg import LinkNeighborLoader, NeighborLoader, NeighborSampler
from pyg.pyg_cases import plain

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),  # khop's are threads, 0 is no fault
    pytest.mark.filterwarnings("ignore:.*pin_memory"),  # the modules' default, where there is no GPU
    pytest.mark.filterwarnings("ignore:.*LeafSpec"),  # Lightning's own use of torch
]


def split() -> Data:
    data = plain()
    data.train_mask, data.val_mask, data.test_mask = (torch.arange(25) % 3 == part for part in range(3))
    return data


class Nodes(lightning.LightningModule):  # type: ignore[misc]
    """GraphSAGE on the seeds of every batch."""

    def __init__(self) -> None:
        super().__init__()
        self.model = GraphSAGE(3, 8, 2, out_channels=4)
        self.seen: dict[str, list[int]] = {"train": [], "val": [], "test": []}
        self.losses: list[float] = []

    def _loss(self, batch: Data, stage: str) -> Tensor:
        self.seen[stage] += batch.n_id[: batch.batch_size].tolist()
        return cross_entropy(self.predict_step(batch), batch.y[: batch.batch_size])

    def training_step(self, batch: Data) -> Tensor:
        loss = self._loss(batch, "train")
        self.losses.append(float(loss.detach()))
        return loss

    def validation_step(self, batch: Data) -> None:
        self.log("val", self._loss(batch, "val"), batch_size=batch.batch_size)

    def test_step(self, batch: Data) -> None:
        self.log("test", self._loss(batch, "test"), batch_size=batch.batch_size)

    def predict_step(self, batch: Data) -> Tensor:
        found: Tensor = self.model(batch.x, batch.edge_index)[: batch.batch_size]
        return found

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=0.01)


class Links(lightning.LightningModule):  # type: ignore[misc]
    """GraphSAGE on the ends of every batch's pairs."""

    def __init__(self) -> None:
        super().__init__()
        self.model = GraphSAGE(3, 8, 2)
        self.seen: list[int] = []

    def training_step(self, batch: Data) -> Tensor:
        self.seen += batch.input_id.tolist()
        ends = self.model(batch.x, batch.edge_index)[batch.edge_label_index]
        return binary_cross_entropy_with_logits((ends[0] * ends[1]).sum(-1), batch.edge_label)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=0.01)


class Threads(LightningDataModule):  # type: ignore[misc]
    """A module of one's own, whose loaders are khop's."""

    def __init__(self, data: Data, **settings: Any) -> None:
        super().__init__(has_val=True, has_test=True, **settings)
        self.data = data

    def _loader(self, nodes: Tensor, *, shuffle: bool = False) -> NeighborLoader:
        return NeighborLoader(self.data, [4, 2], nodes, shuffle=shuffle, **self.kwargs)

    def train_dataloader(self) -> NeighborLoader:
        return self._loader(self.data.train_mask, shuffle=True)

    def val_dataloader(self) -> NeighborLoader:
        return self._loader(self.data.val_mask)

    def test_dataloader(self) -> NeighborLoader:
        return self._loader(self.data.test_mask)

    def predict_dataloader(self) -> NeighborLoader:
        return self._loader(torch.arange(25))


def trainer(epochs: int = 2) -> lightning.Trainer:
    return lightning.Trainer(
        accelerator="cpu",
        max_epochs=epochs,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
    )


def test_a_module_with_khops_loaders_trains_and_its_workers_change_nothing() -> None:
    data, ran = split(), []
    for workers in (0, 2):
        torch.manual_seed(0)
        model = Nodes()
        trainer().fit(model, Threads(data, batch_size=4, num_workers=workers, pin_memory=False))
        ran.append(model)
    assert sorted(ran[0].seen["train"]) == sorted(data.train_mask.nonzero().view(-1).tolist() * 2)
    assert sorted(ran[0].seen["val"]) == sorted(data.val_mask.nonzero().view(-1).tolist() * 2)
    assert ran[0].losses == ran[1].losses
    assert ran[0].losses[-1] < ran[0].losses[0]


def test_a_module_with_khops_loaders_tests_and_predicts() -> None:
    """For predictions Lightning makes the loader again, from its arguments."""
    data, model = split(), Nodes()
    module = Threads(data, batch_size=4)
    trainer().test(model, module, verbose=False)
    assert model.seen["test"] == data.test_mask.nonzero().view(-1).tolist()
    predicted = trainer().predict(model, module)
    assert predicted is not None
    assert torch.cat([torch.as_tensor(batch) for batch in predicted]).shape == (25, 4)


def test_torch_geometrics_node_module_takes_khops_sampler() -> None:
    data, model = split(), Nodes()
    sampler = NeighborSampler(data, [4, 2])
    module = LightningNodeData(
        data, node_sampler=sampler, batch_size=4, pin_memory=False, eval_loader_kwargs={"num_neighbors": [-1]}
    )
    trainer().fit(model, module)
    assert sorted(model.seen["train"]) == sorted(data.train_mask.nonzero().view(-1).tolist() * 2)
    assert module.eval_graph_sampler.num_neighbors.values == [-1]
    assert sampler.num_neighbors.values == [4, 2]


def test_torch_geometrics_link_module_takes_khops_sampler() -> None:
    data, model = plain(), Links()
    module = LightningLinkData(
        data,
        input_train_edges=data.edge_index,
        link_sampler=NeighborSampler(data, [4, 2]),
        neg_sampling="binary",
        batch_size=16,
        pin_memory=False,
    )
    trainer(1).fit(model, module)
    assert sorted(model.seen) == list(range(60))


def test_a_link_loader_is_a_trainers_loader() -> None:
    data, model = plain(), Links()
    batches = LinkNeighborLoader(data, [4, 2], neg_sampling="binary", batch_size=16, num_workers=2)
    trainer(1).fit(model, batches)
    assert model.seen == list(range(60))
