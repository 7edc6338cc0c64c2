"""Folders of ranks: a rank has its own rows, in the chunks of all."""

from __future__ import annotations

from contextlib import closing
from itertools import accumulate
from pathlib import Path

import torch
from hypothesis import given
from hypothesis import strategies as st

from khop.exchange.lanes import Lanes
from khop.inference.collective_chunks import rank_bounds, shares
from khop.inference.rank_folder import is_seen_by_all, own_stage, rank_folder
from khop.inference.stages import Stage
from khop.runtime.group import ALONE, Group

part_sizes = st.lists(st.integers(0, 40), min_size=1, max_size=6)


ranks = st.integers(1, 7)


chunk_sizes = st.integers(1, 15)


def stage_of(sizes: list[int], chunk_size: int) -> Stage:
    bounds = tuple(accumulate(sizes, initial=0))
    return Stage(0, "node", bounds[-1], chunk_size, torch.empty(0, 2), pieces=bounds)


@given(part_sizes, chunk_sizes, ranks)
def test_the_stage_of_a_rank_has_the_same_chunks(sizes: list[int], chunk_size: int, world_size: int) -> None:
    stage = stage_of(sizes, chunk_size)
    bounds = rank_bounds(stage, world_size)
    for rank, share in enumerate(shares(stage, world_size)):
        own = own_stage(stage, Group(rank, world_size))
        assert (own.count, own.num_chunks) == (bounds[rank + 1] - bounds[rank], len(share))
        for chunk, of_all in enumerate(share):
            span, whole = own.span(chunk), stage.span(of_all)
            assert (span.start, span.stop) == (whole.start - bounds[rank], whole.stop - bounds[rank])


def test_alone_a_rank_resumes_where_it_was(tmp_path: Path) -> None:
    stage, lanes = stage_of([3, 4], 2), Lanes(ALONE, 1)
    rows = torch.arange(14.0).view(7, 2)
    with (
        rank_folder(tmp_path / "w", {"graph": "a"}, [[stage]], lanes) as folder,
        closing(folder.open(stage)) as place,
    ):
        assert place.missing == [0, 1, 2, 3]
        place.put(1, rows[stage.span(1)])
    with rank_folder(tmp_path / "w", {"graph": "a"}, [[stage]], lanes) as folder:
        assert folder.first_layer([[stage]]) == 0
        with closing(folder.open(stage)) as place:
            assert place.missing == [0, 2, 3]
            for chunk in place.missing:
                place.put(chunk, rows[stage.span(chunk)])
            assert torch.equal(place.finished(), rows)
    assert is_seen_by_all(tmp_path, ALONE)
    assert [path.name for path in tmp_path.iterdir()] == ["w"]
