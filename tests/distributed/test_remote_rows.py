"""Requested rows are split into held, cached and remote ones; their places lead back to every request."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from khop.distributed.row_exchange import RemoteRows


@given(
    ids=st.lists(st.integers(0, 19), max_size=30),
    span=st.tuples(st.integers(0, 20), st.integers(0, 20)).map(sorted),
    cached=st.lists(st.integers(0, 19), unique=True, max_size=6),
)
def test_places_find_every_requested_row(ids: list[int], span: list[int], cached: list[int]) -> None:
    first, end = span
    cached = [node for node in cached if not first <= node < end]
    slots = torch.tensor([cached.index(node) if node in cached else -1 for node in ids], dtype=torch.int64)
    rows = RemoteRows.of(torch.tensor(ids, dtype=torch.int64), (first, end), slots, len(cached))
    remote = {node for node in ids if not first <= node < end}
    assert rows.asked.tolist() == sorted(remote - set(cached))
    there = [*range(first, end), *cached, *rows.asked.tolist()]
    assert [there[place] for place in rows.places.tolist()] == ids
    assert rows.num_remote == sum(node in remote for node in ids)
    assert rows.num_kept == sum(node in cached for node in ids)
