"""Wrong rules are refused by what is wrong; `tests/rules` and `tests/extension` have the right ones."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

import khop
from khop.draw import DrawKey, Frontier, Neighbors
from khop.kernels.draw_request import DrawRequest
from khop.rules.rule import DrawArrays, Hop
from khop.schema import EdgeType
from khop.testing import rule as suite
from khop.testing.promises import BrokenPromise

UNIFORM = khop.Uniform()


@dataclass(unsafe_hash=True)
class NotFrozen(khop.RuleBase):
    """The rows of khop's uniform rule."""

    def reference(self, request: DrawRequest) -> Neighbors:
        return UNIFORM.reference(request)


@dataclass(frozen=True)
class Whole(khop.RuleBase):
    """All edges of a row, whatever the fanout."""

    def reference(self, request: DrawRequest) -> Neighbors:
        return UNIFORM.reference(replace(request, fanout=-1))

    def most(self, fanout: int) -> int | None:
        return None


@dataclass(frozen=True)
class ByPlace(Whole):
    """The row's place in the frontier decides: every second row is empty."""

    def reference(self, request: DrawRequest) -> Neighbors:
        found = UNIFORM.reference(replace(request, fanout=-1))
        assert found.edges is not None
        counts = found.offsets.diff()
        odd = torch.arange(counts.numel()) % 2 == 1
        edges = found.edges[torch.repeat_interleave(odd, counts)]
        return request.neighbors(torch.where(odd, counts, 0), edges)


@dataclass(frozen=True)
class ReadsMore(khop.RuleBase):
    """It reads a column that it does not name."""

    def plan(
        self, edge_type: EdgeType, frontier: Frontier, hop: Hop, key: DrawKey, arrays: DrawArrays
    ) -> DrawRequest:
        arrays.column(edge_type, "weight")
        return super().plan(edge_type, frontier, hop, key, arrays)

    def reference(self, request: DrawRequest) -> Neighbors:
        return UNIFORM.reference(request)


@dataclass(frozen=True)
class Sums(khop.RuleBase):
    """Its exact weights are no shares of a row."""

    def reference(self, request: DrawRequest) -> Neighbors:
        return UNIFORM.reference(request)

    def exact_weights(self, edge_type: EdgeType, arrays: DrawArrays) -> Tensor | None:
        return torch.ones(arrays.edges[edge_type].num_edges, dtype=torch.float64) * 2


@dataclass(frozen=True)
class FirstEdges(khop.RuleBase):
    """The first edges of a row, which it says are drawn alike."""

    @property
    def is_uniform(self) -> bool:
        return True

    def reference(self, request: DrawRequest) -> Neighbors:
        whole = UNIFORM.reference(replace(request, fanout=-1))
        assert whole.edges is not None
        counts = whole.offsets.diff()
        places = torch.arange(whole.edges.numel()) - torch.repeat_interleave(whole.offsets[:-1], counts)
        most = request.fanout if request.fanout >= 0 else whole.edges.numel()
        return request.neighbors(counts.clamp(max=most), whole.edges[places < most])


WRONG = {
    NotFrozen(): (suite.it_is_a_value, "Be a frozen value"),
    ByPlace(): (suite.a_row_depends_on_no_other, "in another frontier"),
    ReadsMore(): (suite.needs_name_all_arrays_that_are_read, "which needs does not name"),
    FirstEdges(): (suite.uniform_rules_draw_all_edges_alike, "must be near 200 each"),
    Sums(): (suite.exact_weights_sum_to_one, "must be 0 or 1"),
}


@pytest.mark.parametrize("rule", WRONG, ids=lambda rule: type(rule).__name__)
def test_a_wrong_rule_is_refused_by_what_is_wrong(rule: khop.Rule, few_examples: None) -> None:
    promise, sentence = WRONG[rule]
    assert promise in suite.PROMISES
    with pytest.raises(BrokenPromise, match=sentence):
        promise(rule)
