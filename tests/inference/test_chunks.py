"""Chunks of nodes: batches for evaluation, keyed by nodes and not by their place in a chunk."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from khop import DrawKey
from khop.inference.chunks import Chunks, Meter, evaluating
from khop.inference.dynamic_chunks import DynamicChunks
from khop.inference.layer_stores import Memory
from khop.inference.stages import Stage
from khop.loading.columns import ColumnChoice
from khop.runtime.group import ALONE
from khop.sampling.neighbor import NeighborSampler
from support.small_graphs import one_type

GRAPH = one_type()


def chunks() -> Chunks:
    sampler = NeighborSampler(GRAPH.store, [2, 2])
    return Chunks(sampler, GRAPH.features, ColumnChoice({"node": ("x",)}, {}, {}), DrawKey(5), lambda x: x)


def mean_of_rows(batch: object) -> torch.Tensor:
    """A row per seed of the sums of its block's inputs: different for different draws."""
    block = batch.blocks[-1].adjacencies["node", "to", "node"]  # type: ignore[attr-defined]
    x = batch.columns["node"]["x"]  # type: ignore[attr-defined]
    sums = torch.zeros(block.indptr.numel() - 1, x.shape[1])
    destinations = torch.repeat_interleave(torch.arange(len(sums)), block.indptr.diff())
    return sums.index_add_(0, destinations, x[block.indices.long()])[batch.sample.seed_index["node"]]  # type: ignore[attr-defined]


@pytest.mark.parametrize("chunk_size", [1, 7, 60])
def test_the_size_of_chunks_changes_no_row(chunk_size: int) -> None:
    nodes = torch.arange(59, -1, -1)
    told: list[tuple[int, int]] = []
    stage = Stage(0, "node", 60, chunk_size, torch.empty(0, 7), nodes=nodes)
    meter = Meter(lambda done, total: told.append((done, total)), 60, DynamicChunks())
    rows = meter.rows(stage, Memory(ALONE), chunks(), mean_of_rows)
    assert torch.equal(rows, mean_of_rows(chunks().batch("node", nodes)))
    assert told[-1] == (60, 60)
    assert [done for done, _ in told] == sorted({done for done, _ in told})


def test_modules_get_their_modes_back_also_after_an_error() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Dropout())
    model[1].eval()
    with pytest.raises(KeyError, match="inside"):
        inside(model)
    assert [module.training for module in model.modules()] == [True, True, False]
    assert torch.is_grad_enabled()


def inside(model: nn.Module) -> None:
    with evaluating(model):
        assert not any(module.training for module in model.modules())
        assert not torch.is_grad_enabled()
        raise KeyError("inside")
