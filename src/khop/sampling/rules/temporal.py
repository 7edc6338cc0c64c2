"""Rule for neighbors within time limits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, NoReturn

from khop.arguments import column_name, instance_of, shown, whole_number
from khop.draw import DrawKey, Frontier, Neighbors
from khop.graph.needs import Arrays, RisingTimes, RuleNeed, StoredTimes
from khop.graph.rule import FrontierField, Hop, Rule, RuleBase, reads_times
from khop.kernels.draw_request import DrawRequest, RowLimits
from khop.sampling.rules.uniform import UNIFORM
from khop.schema import EdgeType, Schema


class TemporalStrategy(StrEnum):
    """Selection among the edges that a time limit allows.

    Example:
        >>> khop.Temporal("time", strategy="latest").strategy
        <TemporalStrategy.LATEST: 'latest'>
    """

    SAMPLE = "sample"
    """Draws of the inner rule."""
    LATEST = "latest"
    """The last `fanout` edges; nothing is drawn."""

    @classmethod
    def _missing_(cls, value: object) -> NoReturn:
        raise ValueError(f"strategy {value!r}: must be one of {[str(strategy) for strategy in cls]}")


@dataclass(frozen=True)
class Temporal(RuleBase):
    """Rule that draws only edges and nodes that are not later than the seed.

    The time of an edge is its column, or the column of its source node, or the later of both. Edge types
    with neither column are not limited.

    A mean over draws of SAMPLE estimates what `inner` estimates, over the allowed edges of each seed.
    LATEST draws nothing, so its mean is no estimate of the mean over all allowed edges. There is no
    layer-wise inference for either: a node's edges depend on the seed. Evaluate over batches of the same
    fanouts.

    Args:
        column: Integer column of edges or nodes; the rows of the graph are sorted by it (`sort_by`).
        strategy: Selection among the allowed edges: "sample" (default) or "latest".
        window: Pair (before, after) that also limits times to [limit - before, limit + after], in the
            unit of the column; after is 0 or less. Default None.
        inner: Rule that draws among the allowed edges, without time limits; default `Uniform()`.
    Raises:
        ValueError: The window contains no time or later times, or the inner rule does not fit.
    Example:
        >>> nodes = {"item": khop.NodeTable(3)}
        >>> times = {"time": torch.tensor([10, 20])}
        >>> edges = {"item to item": khop.EdgeTable(torch.tensor([0, 1]), torch.tensor([2, 2]), times)}
        >>> graph = khop.open_graph(khop.write_graph(tmp / "graph", nodes, edges, sort_by="time"))
        >>> sampler = khop.NeighborSampler(graph, [5], rule=khop.Temporal("time"))
        >>> khop.Loader(sampler, [2], batch_size=1, seed_times=[15]).batch(epoch=0, step=0).input_nodes
        tensor([2, 0])
    """

    column: str
    strategy: TemporalStrategy = TemporalStrategy.SAMPLE
    window: tuple[int, int] | None = None
    inner: Rule = UNIFORM

    def __post_init__(self) -> None:
        column_name(self.column)
        object.__setattr__(self, "strategy", TemporalStrategy(self.strategy))
        remedy = "must be khop.Uniform(), khop.Weighted(column) or another rule without time limits"
        instance_of("inner", self.inner, RuleBase, remedy)
        if reads_times(self.inner):
            raise ValueError(f"inner {shown(self.inner)}: {remedy}")
        if self.strategy is TemporalStrategy.LATEST and self.inner != UNIFORM:
            raise ValueError(
                f"strategy=LATEST with {self.inner}: the latest edges are not drawn; leave inner out"
            )
        if self.window is None:
            return
        if not isinstance(self.window, Sequence) or len(self.window) != 2 or isinstance(self.window, str):
            raise ValueError(f"window {shown(self.window)}: must be two whole numbers, (before, after)")
        before, after = (whole_number(f"window {self.window}:", time) for time in self.window)
        object.__setattr__(self, "window", (before, after))
        if after > 0:
            raise ValueError(f"window {self.window}: after {after} would allow later edges; give 0 or less")
        if -after > before:
            raise ValueError(f"window {self.window}: contains no time; before must be {-after} or more")

    @property
    def frontier_fields(self) -> frozenset[FrontierField]:
        """The time limits, and the trees, of which each seed with a limit has one."""
        return self.inner.frontier_fields | {FrontierField.UNTIL, FrontierField.TREE}

    def has_weights(self, fanout: int) -> bool:
        """Return True if neighbors drawn by the inner rule have weights."""
        return self.inner.has_weights(fanout)

    def has_shares(self, fanout: int) -> bool:
        """Return True if the weights of the inner rule are those of a mean."""
        return self.inner.has_shares(fanout)

    @property
    def degrees(self) -> Rule | None:
        """Rule that counts the edges that the time limit allows, if the inner rule needs degrees."""
        counting = self.inner.degrees
        return None if counting is None else replace(self, inner=counting)

    def check(self, schema: Schema) -> None:
        """Raise ValueError unless the graph has the times, and the columns of the inner rule."""
        self.inner.check(schema)
        super().check(schema)

    def needs(self, edge_type: EdgeType) -> tuple[RuleNeed[Any], ...]:
        """Return the times, and the arrays of the inner rule."""
        return (
            StoredTimes(edge_type, self.column),
            RisingTimes(edge_type, self.column),
            *self.inner.needs(edge_type),
        )

    def most(self, fanout: int) -> int | None:
        """Return the largest number of edges that a row can give: that of the inner rule."""
        return self.inner.most(fanout)

    def plan(
        self, edge_type: EdgeType, frontier: Frontier, hop: Hop, key: DrawKey, arrays: Arrays
    ) -> DrawRequest:
        """Return the inner rule's draw, from the edges that the time limits allow."""
        assert frontier.until is not None  # stores check frontiers before they plan
        times = arrays[RisingTimes(edge_type, self.column)]
        if times is None:
            return self._planned(edge_type, frontier, hop, key, arrays)
        own, is_latest = arrays[StoredTimes(edge_type, self.column)], self.strategy is TemporalStrategy.LATEST
        limits = RowLimits(times, own, frontier.until, self.window, is_latest)
        return replace(self._planned(edge_type, frontier, hop, key, arrays), limits=limits)

    def _planned(
        self, edge_type: EdgeType, frontier: Frontier, hop: Hop, key: DrawKey, arrays: Arrays
    ) -> DrawRequest:
        """Return the inner rule's draw, which sees trees only if it reads them."""
        if FrontierField.TREE not in self.inner.frontier_fields:
            frontier = replace(frontier, tree=None)
        return self.inner.plan(edge_type, frontier, hop, key, arrays)

    def reference(self, request: DrawRequest) -> Neighbors:
        """Carry out a draw in torch: the inner rule's, from the edges that the time limits allow."""
        return self.inner.reference(request.resolved())

    def exact_weights(self, edge_type: EdgeType, arrays: Arrays) -> NoReturn:
        """Raise ValueError: each seed has its own edges."""
        raise ValueError(
            f"{self}: the edges of a node depend on the time of the seed, so that no weights of all edges "
            "fit; score the batches of a loader with seed_times=..."
        )


def drawn_until(column: str | None, strategy: str, window: Sequence[int] | None, inner: Rule) -> Rule:
    """Return the rule within time limits by a column; without a column, the inner rule itself."""
    if column is None:
        return inner
    bounds = None if window is None else (window[0], window[1])
    return Temporal(column, TemporalStrategy(strategy), bounds, inner)
