"""Chunks are taken by whoever is free: each of the missing ones once, over all ranks."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import torch
from torch.distributed import HashStore

from khop.distributed.processes.group import ALONE, Group
from khop.inference.chunks import DynamicChunks, Taken
from khop.inference.stages import Stage
from khop.loading.ordered_map import InFlight

STAGE = Stage(0, "node", 23, 2, torch.empty(0, 1))
MISSING = [0, 2, 3, 5, 7, 8, 11]


def taken_by(group: Group, workers: int) -> list[Taken[slice]]:
    chunks = DynamicChunks(group, InFlight(prefetch=3, threads=workers))
    return list(chunks.taken(STAGE, MISSING, lambda rows: rows, lambda rows: 1))


def test_alone_every_missing_chunk_is_made_once() -> None:
    for workers in (1, 3):
        taken = taken_by(ALONE, workers)
        assert sorted(each.chunk for each in taken) == MISSING
        assert all(each.made == STAGE.span(each.chunk) for each in taken)
        assert sorted(each.done for each in taken) == list(range(1, 8))


def test_ranks_share_the_chunks() -> None:
    store = HashStore()
    groups = [Group(rank, 2, store=store) for rank in range(2)]
    with ThreadPoolExecutor(2) as pool:
        shares = list(pool.map(lambda group: taken_by(group, 2), groups))
    assert sorted(each.chunk for share in shares for each in share) == MISSING


def test_a_stage_without_missing_chunks_makes_none() -> None:
    chunks = DynamicChunks()
    assert chunks.threads_each == 1
    assert list(chunks.taken(STAGE, [], lambda rows: rows, lambda rows: 1)) == []
