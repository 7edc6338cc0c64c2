"""Negatives drawn by Triton have the bits of the CPU core."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from khop.draw import DrawKey
from khop.kernels.csc import Csc
from khop.kernels.draw_negatives import Candidates, NegativeDraw, NothingLeft, Partners
from khop.kernels.draw_negatives import draw_negatives as expected_draw
from khop.kernels.philox import signed
from khop.kernels.triton.draw_negatives import DeviceLinks, draw_negatives
from support.triton_rows import DEVICE, csc_on_device, on_device, padded

KEY, STREAM = DrawKey(0xFEDCBA9876543210), 0x8D1C2A1B
COUNT, LINKS, SPARE = 60, 90, 3
ROWS = [[], [0], list(range(0, 60, 2)), [59], list(range(5, 50)), [3, 4, 58]]
SOURCES, POSITIONS = torch.arange(LINKS) * 5 % len(ROWS), torch.arange(LINKS) * 7 + (1 << 33)
LIMITS = torch.arange(LINKS) % 9 + 51


def candidates(weighted: bool) -> Candidates:
    weights = torch.arange(COUNT) * 7919 % 256 * (torch.arange(COUNT) % 5 > 0) << 20
    return Candidates(COUNT, torch.cat([weights.new_zeros(1), weights.cumsum(0)]) if weighted else None)


def partners(of: Candidates, dtype: torch.dtype) -> Partners:
    indptr = torch.tensor([0, *map(len, ROWS)]).cumsum(0)
    return Partners.of(Csc(indptr, torch.tensor([rank for row in ROWS for rank in row], dtype=dtype)), of)


def drawn(
    of: Candidates, without: Partners | None, per_positive: int, limits: Tensor | None = None
) -> tuple[Tensor, int]:
    """Ranks of all links, and the first link without candidates, or the largest number."""
    ranks = torch.full((LINKS + SPARE, per_positive), -77, device=DEVICE)
    culprit = torch.tensor([2**63 - 1], device=DEVICE)
    links = DeviceLinks(
        padded(SOURCES, LINKS + SPARE),
        padded(POSITIONS, LINKS + SPARE),
        torch.tensor([LINKS], dtype=torch.int32, device=DEVICE),
        torch.tensor([signed(KEY.value)], device=DEVICE),
        STREAM,
        None if limits is None else padded(limits, LINKS + SPARE),
    )
    rows = None if without is None else csc_on_device(without.ranks)
    before = None if without is None else on_device(without.weights_before)
    draw_negatives(of.count, on_device(of.weights_before), rows, before, links, ranks, culprit)
    assert (ranks[LINKS:] == -1).all()
    return ranks[:LINKS].cpu(), int(culprit)


@pytest.mark.parametrize("limits", [None, LIMITS], ids=["all", "limited"])
@pytest.mark.parametrize("exact", [None, torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize("weighted", [False, True], ids=["even", "weighted"])
def test_draws_have_the_bits_of_the_core(
    weighted: bool, exact: torch.dtype | None, limits: Tensor | None
) -> None:
    of = candidates(weighted)
    without = None if exact is None else partners(of, exact)
    expected = expected_draw(NegativeDraw(of, without, SOURCES, POSITIONS, 5, KEY, STREAM, limits=limits))
    ranks, culprit = drawn(of, without, 5, limits)
    assert torch.equal(ranks, expected)
    assert culprit == 2**63 - 1


@pytest.mark.parametrize("count", [(1 << 20) - 1, 1 << 20])
def test_the_width_of_a_draw_changes_at_two_to_the_twenty(count: int) -> None:
    expected = expected_draw(NegativeDraw(Candidates(count), None, SOURCES, POSITIONS, 3, KEY, STREAM))
    assert torch.equal(drawn(Candidates(count), None, 3)[0], expected)


def test_the_first_link_without_candidates_is_found() -> None:
    of, limits = candidates(False), LIMITS.clone()
    limits[[7, 31]] = 0
    expected = expected_draw(NegativeDraw(of, None, SOURCES, POSITIONS, 4, KEY, STREAM, limits=limits))
    ranks, culprit = drawn(of, None, 4, limits)
    assert expected == NothingLeft(culprit) == NothingLeft(7)
    assert (ranks == -1).all(1).nonzero().flatten().tolist() == [7, 31]
