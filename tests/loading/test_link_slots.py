"""Links with room for more of them: links and negatives keep their order, and the others weigh nothing."""

from __future__ import annotations

import pytest
import torch

from khop.batch import LinkRows
from khop.loading.link_slots import LinkSlots, padded_links

EDGE = ("user", "buys", "item")


def pairs(links: int, negatives: int, first: int = 1) -> LinkRows:
    """Links numbered from `first` on, each with negatives as further pairs, numbered after the links."""
    count = links * (1 + negatives)
    rows = torch.arange(first, first + count)
    labels = torch.cat([torch.ones(links), torch.zeros(links * negatives)])
    return LinkRows(rows, rows + 100, torch.arange(links), labels, None, 1 + negatives, relations=rows * 2)


def test_negatives_begin_behind_the_room_of_all_links() -> None:
    found = padded_links(pairs(2, 2), 3)
    assert found.source.tolist() == [1, 2, 0, 3, 4, 5, 6, 0, 0]
    assert found.destination.tolist() == [101, 102, 0, 103, 104, 105, 106, 0, 0]
    assert found.labels is not None
    assert found.labels.tolist() == [1, 1, 0, 0, 0, 0, 0, 0, 0]
    assert found.relations is not None
    assert found.relations.tolist() == [2, 4, 0, 6, 8, 10, 12, 0, 0]
    assert (found.positions.tolist(), found.pairs_per_link) == ([0, 1, 0], 3)


def test_triplets_have_a_row_per_link() -> None:
    given = LinkRows(*torch.arange(6).view(3, 2), None, torch.ones(2, 4).long(), times=torch.tensor([5, 6]))
    found = padded_links(given, 3)
    assert found.negatives is not None
    assert found.negatives.tolist() == [[1] * 4, [1] * 4, [0] * 4]
    assert found.times is not None
    assert found.times.tolist() == [5, 6, 0]
    assert found.labels is None


def test_a_later_batch_overwrites_rows_and_weights() -> None:
    slots = LinkSlots({EDGE: 3}, {EDGE: pairs(3, 1)}, torch.device("cpu"))
    for given in (pairs(3, 1), pairs(2, 1, first=40)):
        slots.write({EDGE: given}, 0.25)
    assert slots.rows[EDGE].source.tolist() == [40, 41, 0, 42, 43, 0]
    assert slots.weights.tolist() == [0.25, 0.25, 0, 0.25, 0.25, 0]


@pytest.mark.parametrize(("links", "fits"), [(0, True), (3, True), (4, False)])
def test_links_beyond_the_room_do_not_fit(links: int, fits: bool) -> None:
    slots = LinkSlots({EDGE: 3}, {EDGE: pairs(1, 1)}, torch.device("cpu"))
    assert slots.fits({EDGE: pairs(links, 1)}) is fits
