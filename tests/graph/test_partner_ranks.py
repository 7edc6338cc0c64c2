"""Partners of sources equal brute force, for all edges and by relation."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from khop.graph.negatives import partner_ranks, related_ranks
from khop.kernels.csc import Csc, build_csc

NODES = 6
EDGES = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3), st.integers(0, 5)), max_size=25)
ORDER = torch.tensor([3, 5, 0, 1, 4, 2])  # the node of each rank


def rows_of(ranks: Csc) -> list[list[int]]:
    return [ranks.indices[a:b].tolist() for a, b in zip(ranks.indptr[:-1], ranks.indptr[1:], strict=True)]


@given(edges=EDGES, same=st.booleans())
def test_rows_are_the_partners_of_each_source_in_order(edges: list[tuple[int, int, int]], same: bool) -> None:
    given = torch.tensor(edges, dtype=torch.int64).view(-1, 3)
    csc, order = build_csc(given[:, 0].contiguous(), given[:, 2].contiguous(), NODES, NODES)
    rank = {node: place for place, node in enumerate(ORDER.tolist())}
    found = rows_of(partner_ranks(csc, NODES, ORDER, same))
    for source in range(NODES):
        partners = {d for s, _, d in edges if s == source} | ({source} if same else set())
        assert found[source] == sorted(rank[d] for d in partners)
    related = related_ranks(csc, given[order.long(), 1], (NODES, NODES), ORDER, same)
    asked = torch.cartesian_prod(torch.arange(NODES), torch.arange(5))
    rows = related.rows(asked[:, 0].contiguous(), asked[:, 1].contiguous())
    by_pair = rows_of(related.ranks)
    for (source, relation), row in zip(asked.tolist(), rows.tolist(), strict=True):
        partners = {d for s, r, d in edges if (s, r) == (source, relation)} | ({source} if same else set())
        assert by_pair[row] == sorted(rank[d] for d in partners)
