"""Ranks that take chunks in step have all of them, each once, and the chunks of their own parts."""

from __future__ import annotations

from itertools import accumulate

import torch
from hypothesis import given
from hypothesis import strategies as st

from khop.distributed.partition_owners import PartitionOwners
from khop.inference.collective_chunks import shares
from khop.inference.stages import Stage

part_sizes = st.lists(st.integers(0, 40), min_size=1, max_size=6)
ranks = st.integers(1, 7)
chunk_sizes = st.integers(1, 15)


def stage_of(sizes: list[int], chunk_size: int) -> Stage:
    bounds = tuple(accumulate(sizes, initial=0))
    return Stage(0, "node", bounds[-1], chunk_size, torch.empty(0, 2), pieces=bounds)


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
