"""One edge type's draw, as tests ask for it."""

from __future__ import annotations

from torch import Tensor

from khop.draw import Neighbors
from khop.kernels.csc import Csc
from khop.kernels.draw_request import DrawRequest, Kernel
from khop.kernels.edge_times import HopRows, Rising, outline
from khop.kernels.sample_hop import sample_hop
from khop.kernels.sample_reference import sample_uniform_reference, sample_weighted_reference
from khop.sampling.rules.uniform import Uniform
from khop.sampling.rules.weighted import Weighted


def rising(csc: Csc, values: Tensor) -> Rising:
    """Values, int64 (edges), that never fall within a row, and their outline."""
    return Rising(values, outline(csc, values))


def uniform_request(csc: Csc, rows: HopRows, fanout: int, rule: Uniform) -> DrawRequest:
    return DrawRequest(csc, rows, fanout, sample_uniform_reference, Kernel.UNIFORM, rule.replacement)


def weighted_request(csc: Csc, sums: Rising, rows: HopRows, fanout: int, rule: Weighted) -> DrawRequest:
    return DrawRequest(csc, rows, fanout, sample_weighted_reference, Kernel.WEIGHTED, rule.replacement, sums)


def sample_uniform(
    csc: Csc, rows: HopRows, fanout: int, rule: Uniform, *, edge_ids: bool = False, threads: int = 1
) -> Neighbors:
    return sample_hop([uniform_request(csc, rows, fanout, rule)], edge_ids=edge_ids, threads=threads)[0]


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
    request = weighted_request(csc, sums, rows, fanout, rule)
    return sample_hop([request], edge_ids=edge_ids, threads=threads)[0]
