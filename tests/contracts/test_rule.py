"""Wrong rules are refused by what is wrong; `tests/rules` and `tests/extension` have the right ones."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import pytest
import torch
from torch import Tensor

import khop
from khop.draw import DrawKey, Frontier, Neighbors
from khop.graph.needs import Arrays, EdgeColumn
from khop.graph.rule import FrontierField, Hop
from khop.kernels.draw_request import DrawRequest, Kernel
from khop.schema import EdgeType, Schema
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
        self, edge_type: EdgeType, frontier: Frontier, hop: Hop, key: DrawKey, arrays: Arrays
    ) -> DrawRequest:
        _ = arrays[EdgeColumn(edge_type, "weight")]
        return super().plan(edge_type, frontier, hop, key, arrays)

    def reference(self, request: DrawRequest) -> Neighbors:
        return UNIFORM.reference(request)


@dataclass(frozen=True)
class Sums(khop.RuleBase):
    """Its exact weights are not those that its draws of all neighbors have."""

    def reference(self, request: DrawRequest) -> Neighbors:
        return UNIFORM.reference(request)

    def exact_weights(self, edge_type: EdgeType, arrays: Arrays) -> Tensor | None:
        return torch.ones(arrays.edges[edge_type].num_edges, dtype=torch.float64) * 2


@dataclass(frozen=True)
class CountsNothing(khop.SymmetricSum):
    """It names a rule for degrees that gives no weights."""

    @property
    def degrees(self) -> khop.Rule:
        return UNIFORM


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


@dataclass(frozen=True)
class SaysMean(khop.Weighted):
    """It says that its draws by weight estimate the mean over all edges."""

    def exact_weights(self, edge_type: EdgeType, arrays: Arrays) -> None:
        return None


@dataclass(frozen=True)
class SaysShares(khop.Sum):
    """It says that the weights of a sum are those of a mean."""

    def has_shares(self, fanout: int) -> bool:
        return True


@dataclass(frozen=True)
class TooMany(khop.Uniform):
    """More edges than it says."""

    def most(self, fanout: int) -> int | None:
        return 0


@dataclass(frozen=True)
class Hurries(Whole):
    """Half of the fanout if threads share a large frontier."""

    def plan(
        self, edge_type: EdgeType, frontier: Frontier, hop: Hop, key: DrawKey, arrays: Arrays
    ) -> DrawRequest:
        is_shared = hop.threads > 1 and frontier.nodes.numel() >= 600
        kept = frontier.nodes[:1].expand(len(frontier.nodes)) if is_shared else frontier.nodes
        return super().plan(edge_type, replace(frontier, nodes=kept), hop, key, arrays)


@dataclass(frozen=True)
class ByNewId(Whole):
    """Nodes with an odd id have no edges; partitioning gives them new ids."""

    def reference(self, request: DrawRequest) -> Neighbors:
        found = UNIFORM.reference(replace(request, fanout=-1))
        assert found.edges is not None
        counts, even = found.offsets.diff(), request.rows.nodes % 2 == 0
        edges = found.edges[torch.repeat_interleave(even, counts)]
        return request.neighbors(torch.where(even, counts, 0), edges)


@dataclass(frozen=True)
class OtherKernel(Whole):
    """The kernel draws the fanout, the reference all edges."""

    kernel: ClassVar[Kernel] = Kernel.UNIFORM


@dataclass(frozen=True)
class ChecksNothing(khop.Weighted):
    def check(self, schema: Schema) -> None:
        """Every graph fits."""


@dataclass(frozen=True)
class HiddenLimits(Whole):
    """It reads time limits, which it does not name."""

    def plan(
        self, edge_type: EdgeType, frontier: Frontier, hop: Hop, key: DrawKey, arrays: Arrays
    ) -> DrawRequest:
        request = super().plan(edge_type, frontier, hop, key, arrays)
        return request if frontier.until is None else replace(request, fanout=0)


@dataclass(frozen=True)
class NeedlessLimits(Whole):
    """It names time limits, which it does not read."""

    @property
    def frontier_fields(self) -> frozenset[FrontierField]:
        return frozenset({FrontierField.UNTIL})


@dataclass(frozen=True)
class DrawsAgain(khop.Uniform):
    """Exact inference draws as training does, at random."""

    def exact_fanout(self, schema: Schema, edge_type: EdgeType, fanout: int) -> int:
        return fanout


WRONG = {
    TooMany(): (suite.drawn_edges_belong_to_their_rows, "edges of a row, most is"),
    Hurries(): (suite.threads_change_no_draw, "with three threads"),
    ByNewId(): (suite.partitions_change_no_draw, "from partitions"),
    OtherKernel(): (suite.a_kernel_draws_as_the_reference, "by sample_hop"),
    ChecksNothing("weight"): (suite.a_graph_without_its_columns_is_refused, "no error was raised"),
    HiddenLimits(): (suite.frontier_fields_are_those_that_it_reads, "which are not in frontier_fields"),
    NeedlessLimits(): (suite.frontier_fields_are_those_that_it_reads, "but no plan reads them"),
    TooMany(replacement=True): (suite.messages_between_ranks_carry_a_draw, "does not fit into its message"),
    NotFrozen(): (suite.it_is_a_value, "Be a frozen value"),
    ByPlace(): (suite.a_row_depends_on_no_other, "in another frontier"),
    ReadsMore(): (suite.needs_name_all_arrays_that_are_read, "which are not in needs"),
    FirstEdges(): (suite.uniform_rules_draw_all_edges_alike, "must be near 200 each"),
    CountsNothing(): (suite.degrees_weigh_the_edges_of_a_row, "have no weights"),
    DrawsAgain(): (suite.exact_inference_draws_nothing_at_random, "of exact inference, with another key"),
    SaysMean("weight"): (suite.draws_average_to_exact_weights, "in the mean of draws, must be"),
    SaysShares(): (suite.shares_add_up_to_one, "must add up to 1"),
    Sums(): (suite.all_neighbors_have_their_exact_weights, "weights of all edges are"),
}


@pytest.mark.core(3)
@pytest.mark.parametrize("rule", WRONG, ids=lambda rule: type(rule).__name__)
def test_a_wrong_rule_is_refused_by_what_is_wrong(rule: khop.Rule, few_examples: None) -> None:
    promise, sentence = WRONG[rule]
    assert promise in suite.PROMISES
    with pytest.raises(BrokenPromise, match=sentence):
        promise(rule)


def test_each_promise_has_a_wrong_rule() -> None:
    assert {promise for promise, _ in WRONG.values()} == set(suite.PROMISES)
