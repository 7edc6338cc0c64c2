"""One edge type's draw, as tests ask for it."""

from __future__ import annotations

from torch import Tensor

from khop.draw import Neighbors, Uniform, Weighted
from khop.kernels.csc import Csc
from khop.kernels.hop_rows import HopRows
from khop.kernels.rising import Rising, outline
from khop.kernels.sample_hop import EdgeDraw, sample_hop


def rising(csc: Csc, values: Tensor) -> Rising:
    """Values, int64 (edges), that never fall within a row, and their outline."""
    return Rising(values, outline(csc, values))


def sample_uniform(
    csc: Csc, rows: HopRows, fanout: int, rule: Uniform, *, edge_ids: bool = False, threads: int = 1
) -> Neighbors:
    return sample_hop([EdgeDraw(csc, rows, fanout, rule)], edge_ids=edge_ids, threads=threads)[0]


def sample_weighted(
    csc: Csc,
    sums: Rising,
    rows: HopRows,
    fanout: int,
    rule: Weighted,
    *,
    edge_ids: bool = False,
    threads: int = 1,
) -> Neighbors:
    return sample_hop([EdgeDraw(csc, rows, fanout, rule, sums)], edge_ids=edge_ids, threads=threads)[0]
