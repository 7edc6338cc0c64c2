"""Digests of lists of links: ranges add up, and every number, end and column counts."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from khop.sampling.link_digest import links_digest


@given(count=st.integers(0, 40), cut=st.integers(0, 40), width=st.integers(0, 3))
def test_digests_of_ranges_add_up_to_that_of_the_list(count: int, cut: int, width: int) -> None:
    cut = min(cut, count)
    facts = [torch.arange(2 * count).view(count, 2), torch.arange(count).half(), torch.ones(count, width)]
    stretches = ((0, facts, slice(0, cut)), (cut, facts, slice(cut, count)))
    total = sum(links_digest(first, [fact[some] for fact in of]) for first, of, some in stretches)
    assert total % 2**64 == links_digest(0, facts)
    if count > 1:
        assert links_digest(0, [fact.flip(0) for fact in facts]) != links_digest(0, facts)
