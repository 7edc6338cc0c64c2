"""Sampling rule with time limits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Literal, NoReturn

from khop.arguments import check_word, checked_field, column_name, instance_of, shown, truth, whole_number
from khop.draw import DrawKey, Frontier, Neighbors
from khop.graph.needs import Arrays, RisingTimes, RuleNeed, StoredTimes
from khop.graph.rule import FrontierField, Hop, Rule, RuleBase, reads_times
from khop.kernels.draw_request import DrawRequest, RowLimits
from khop.kernels.edge_times import EdgeTimes
from khop.sampling.rules.uniform import UNIFORM
from khop.schema import EdgeType, Schema

TemporalLimit = Literal["seed", "edge"]
"""The time that limits the edges of a node: that of its seed, or that of the edge that led to it."""
_ANY = (1 << 63) - 1  # before the limit: no earliest time


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
    """Rule that samples only edges and nodes that are not later than the seed.

    The time of an edge is its value in the column, or that of its source node; if both have the column, the
    later value counts. Edge types with neither column are not limited.

    With `limit="edge"`, times never increase along a path: the edges of a node are not later than the edge
    that led to it, as in TGAT (Xu et al. 2020) and TGN (Rossi et al. 2020). A node that is reached over
    several edges has a row for each of them.

    A mean over draws of SAMPLE estimates what `inner` estimates, over the allowed edges of each seed. LATEST
    is not random, so its mean does not estimate the mean over all allowed edges. Neither supports layer-wise
    inference, because a node's edges depend on the seed. Evaluate on batches with the same fanouts.

    Args:
        column: Integer column of edges or nodes; the rows of the graph are sorted by it (`sort_by`).
        strategy: Selection among the allowed edges: "sample" (default) or "latest".
        window: Pair (before, after) that also limits times to [limit - before, limit + after], in the
            unit of the column; after is 0 or less. With (None, -1), edges are earlier than the limit, and
            never at the same time. Default None: all times up to the limit.
        inner: Sampling rule for the allowed edges, without time limits; default `Uniform()`.
        limit: Limit of the edges of a node: "seed" (default), the time of its seed, or "edge", the time of
            the edge that led to it.
        elapsed: Give batches the time between each edge and its limit, `Adjacency.elapsed`, for models such
            as `khop.models.GAT(edge_times=...)`. Default False; always given with `limit="edge"`.
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
    window: tuple[int | None, int] | None = None
    inner: Rule = UNIFORM
    limit: TemporalLimit = "seed"
    elapsed: bool = False

    def __post_init__(self) -> None:
        column_name(self.column)
        object.__setattr__(self, "strategy", TemporalStrategy(self.strategy))
        check_word("limit", self.limit, TemporalLimit)
        checked_field(self, "elapsed", truth)
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
        given = f"window {self.window}:"
        before = None if self.window[0] is None else whole_number(given, self.window[0])
        after = whole_number(given, self.window[1])
        object.__setattr__(self, "window", (before, after))
        if after > 0:
            raise ValueError(f"window {self.window}: after {after} would allow later edges; give 0 or less")
        if before is not None and -after > before:
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
    def has_times(self) -> bool:
        """True if batches have the time between each edge and its limit."""
        return self.elapsed or self.has_paths

    @property
    def has_paths(self) -> bool:
        """True if the time of a drawn edge limits the edges behind it."""
        return self.limit == "edge"

    @property
    def degrees(self) -> Rule | None:
        """Rule that counts the edges that the time limit allows, if the inner rule needs degrees."""
        counting = self.inner.degrees
        return None if counting is None else replace(self, inner=counting, limit="seed", elapsed=False)

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
        planned = self._planned(edge_type, frontier, hop, key, arrays)
        if times is None:
            return replace(planned, times=frontier.until) if self.has_times else planned
        own, is_latest = arrays[StoredTimes(edge_type, self.column)], self.strategy is TemporalStrategy.LATEST
        window = self.window and (_ANY if self.window[0] is None else self.window[0], self.window[1])
        limits = RowLimits(times, own, frontier.until, window, is_latest)
        given = EdgeTimes(times.values) if own is None else own
        return replace(planned, limits=limits, times=given if self.has_times else None)

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
        """Raise ValueError, because each seed has different edges."""
        raise ValueError(
            f"{self}: the edges of a node depend on the time of the seed, so exact weights do not exist; "
            "score the batches of a loader with seed_times=..."
        )
