"""Chunks of nodes: batches for evaluation, keyed by nodes and not by their place in a chunk.

Ranks that take chunks in step have all of them, each once, and the chunks of their own parts.
"""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from torch import nn

from khop import DrawKey
from khop.distributed.owners import PartitionOwners
from khop.distributed.processes.group import ALONE
from khop.inference.chunks import ChunkMeter, Chunks, DynamicChunks, evaluating, shares
from khop.inference.stages import MemoryStore, Stage
from khop.loading.columns import ColumnChoice
from khop.sampling.sampler import NeighborSampler
from support.small_graphs import one_type
from support.stages import chunk_sizes, part_sizes, ranks, stage_of

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


@pytest.mark.core(1)
@pytest.mark.parametrize("chunk_size", [1, 7, 60])
def test_the_size_of_chunks_changes_no_row(chunk_size: int) -> None:
    nodes = torch.arange(59, -1, -1)
    told: list[tuple[int, int]] = []
    stage = Stage(0, "node", 60, chunk_size, torch.empty(0, 7), nodes=nodes)
    meter = ChunkMeter(lambda done, total: told.append((done, total)), 60, DynamicChunks())
    rows = meter.rows(stage, MemoryStore(ALONE), chunks(), mean_of_rows)
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


@given(part_sizes, chunk_sizes, ranks)
def test_a_rank_has_the_chunks_of_the_parts_that_it_holds(
    sizes: list[int], chunk_size: int, world_size: int
) -> None:
    stage, holders = stage_of(sizes, chunk_size), PartitionOwners(len(sizes), world_size=world_size)
    dealt = shares(stage, world_size)
    assert [chunk for share in dealt for chunk in share] == list(range(stage.num_chunks))
    for rank, share in enumerate(dealt):
        first, last = holders.held(stage.pieces, rank)
        assert all(first <= stage.span(chunk).start < last for chunk in share)
    for part in range(len(sizes)):
        counts = [len(dealt[rank]) for rank in holders.ranks_of(part)]
        assert max(counts) - min(counts) <= 1
