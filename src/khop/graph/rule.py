"""The Rule protocol, which connects the loop over hops, graph stores and sampling rules."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any, ClassVar, Protocol

from torch import Tensor

from khop.arguments import instance_of
from khop.draw import DrawKey, Frontier, Neighbors, stream
from khop.graph.needs import Arrays, RisingTimes
from khop.graph.needs import EdgeColumn as EdgeColumn
from khop.graph.needs import RuleNeed as RuleNeed
from khop.graph.needs import SourceIds as SourceIds
from khop.kernels.draw_request import DrawRequest, Kernel
from khop.kernels.edge_times import HopRows
from khop.schema import ColumnSpec, EdgeType, NodeType, Schema

_NOT_INTEGERS = ("float16", "float32", "float64", "bfloat16", "bool")


class FrontierField(StrEnum):
    """An optional field of `Frontier` that a rule reads."""

    UNTIL = "until"  # time limits: a rule that reads them requires them
    TREE = "tree"  # disjoint trees: present if the sampler makes them


_TREE = frozenset({FrontierField.TREE})


class Rule(Protocol):
    """A way to draw neighbors: a frozen value; different rules have different `repr`.

    Implementers subclass `RuleBase`, which has defaults for most members.

    Example:
        >>> def reads_all(rule: khop.Rule) -> bool:
        ...     return rule.most(fanout=5) is None
        >>> reads_all(khop.Uniform())
        False
    """

    @property
    def frontier_fields(self) -> frozenset[FrontierField]:
        """The fields of the frontier that a draw reads (default: trees). Only these are sent to owners."""
        return _TREE

    def has_weights(self, fanout: int) -> bool:
        """Return True if neighbors drawn with this fanout come with weights; default False.

        A weight is a final coefficient: layers sum weight times row without normalization. Neighbors
        without weights are averaged. Exact inference draws with fanout -1, so the weights of all edges
        must be the sum or mean that draws of few edges estimate.

        Args:
            fanout: Neighbors per node; -1: all.
        """
        return False

    def has_shares(self, fanout: int) -> bool:
        """Return True if these weights are those of a mean: a row's weights add up to 1; default False.

        A row that loses edges, such as the links of a batch, then divides the others by their sum.

        Args:
            fanout: Neighbors per node; -1: all.
        """
        return False

    @property
    def has_times(self) -> bool:
        """True if drawn neighbors come with the times of their edges; default False."""
        return False

    @property
    def has_paths(self) -> bool:
        """True if the time of a drawn edge limits the edges of the next hop; default False."""
        return False

    @property
    def is_uniform(self) -> bool:
        """True if every edge of a row is equally likely, so that degrees tell the visits; default False."""
        return False

    @property
    def degrees(self) -> Rule | None:
        """Rule that counts edges, for samplers that normalize by degrees; default None: weights are final.

        Its draws of one neighbor per row have weights equal to the number of candidate edges.
        """
        return None

    def check(self, schema: Schema) -> None:
        """Raise ValueError unless the graph has the columns that the rule names, with usable numbers.

        Args:
            schema: Types and columns of the graph.
        """
        ...

    def needs(self, edge_type: EdgeType) -> tuple[RuleNeed[Any], ...]:
        """Return the arrays that draws of an edge type read, of those whose columns it has; default none.

        Args:
            edge_type: The edge type.
        """
        return ()

    def most(self, fanout: int) -> int | None:
        """Return the maximum number of edges per row, default `fanout`; None: limited only by the degree.

        Args:
            fanout: Neighbors per node; -1: all.
        """
        return None if fanout < 0 else fanout

    def plan(
        self, edge_type: EdgeType, frontier: Frontier, hop: Hop, key: DrawKey, arrays: Arrays
    ) -> DrawRequest:
        """Return the draw of an edge type's rows, to be executed by the owners of the rows.

        Args:
            edge_type: The edge type.
            frontier: Nodes to expand.
            hop: Number and fanouts of the hop.
            key: Key of the draws.
            arrays: Edges, and the arrays of `needs`.
        """
        ...

    def reference(self, request: DrawRequest) -> Neighbors:
        """Execute a draw in torch, with `Neighbors.edges`.

        Args:
            request: The draw, as returned by `plan`.
        """
        ...

    def exact_weights(self, edge_type: EdgeType, arrays: Arrays) -> Tensor | None:
        """Return the coefficients of all edges in the sum that draws estimate, float64 (edges).

        None: draws estimate the mean over all edges of a row.

        Args:
            edge_type: The edge type.
            arrays: Edges, and the arrays of `needs`.
        Raises:
            ValueError: Draws do not estimate a fixed sum: exact inference then draws by the rule itself, with
                `exact_fanout`.
        """
        ...

    def exact_fanout(self, schema: Schema, edge_type: EdgeType, fanout: int) -> int:
        """Return the fanout of exact inference along an edge type: -1 (default) for all edges.

        A rule without random draws may return `fanout`: the same edges as in training.

        Args:
            schema: Types and columns of the graph.
            edge_type: The edge type.
            fanout: Fanout of training.
        """
        return -1


@dataclass(frozen=True)
class Hop:
    """Parameters of the draws at one distance from the seeds."""

    number: int  # 1 = the direct neighbors of the seeds
    fanouts: Mapping[EdgeType, int]  # neighbors per frontier node; -1 = all, 0 = none
    rule: Rule
    edge_ids: bool = False  # True: return Neighbors.edges
    threads: int = 1  # threads that may share the frontier; does not change draws


class RuleBase(Rule, ABC):
    """Base of rules: a subclass is a frozen dataclass that defines `reference`; the rest has defaults.

    Draws must depend only on (key, stream, tree, original id, the row's edges), never on other rows, the
    order of the frontier or a global generator. Edges are then the same for any number of partitions. The
    class attribute `kernel` names the kernel that executes the draws of `plan` (None: only `reference` does),
    and `replacement` is True if it draws with replacement.

    Example:
        >>> from dataclasses import dataclass
        >>> @dataclass(frozen=True)
        ... class First(khop.RuleBase):
        ...     def reference(self, request):
        ...         begin, end = request.rows.bounds(request.csc)
        ...         return request.neighbors((end > begin).long(), begin[end > begin])
        >>> sampler = khop.NeighborSampler(khop.open_graph("debian"), [2], rule=First())
        >>> khop.Loader(sampler, [0, 1], batch_size=2).batch(epoch=0, step=0).blocks[0].adjacency.indptr
        tensor([0, 1, 2])
    """

    kernel: ClassVar[Kernel | None] = None  # executes the draws of `plan`; None: only `reference` does
    replacement: bool = False  # True: the kernel draws with replacement

    def __init__(self) -> None: ...

    def __str__(self) -> str:
        """Write the rule as in a script, without default values: Temporal(column='time', limit='edge')."""
        words = []
        for field in fields(self):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            if value is not field.default and value != field.default:
                shown = value if isinstance(value, RuleBase) else repr(getattr(value, "value", value))
                words.append(f"{field.name}={shown}")
        return f"{type(self).__name__}({', '.join(words)})"

    def check(self, schema: Schema) -> None:
        """Raise ValueError unless some edge type has each column that `needs` names, with usable numbers."""
        wanted = {
            (need.column, type(need).__name__): need
            for edge_type in schema.edge_types
            for need in self.needs(edge_type)
        }
        for (column, _), need in sorted(wanted.items(), key=lambda item: item[0]):
            if column:
                _check_column(schema, self, need)

    def plan(
        self, edge_type: EdgeType, frontier: Frontier, hop: Hop, key: DrawKey, arrays: Arrays
    ) -> DrawRequest:
        """Return the draw of an edge type's rows, by kernel and reference, with the arrays of `needs`."""
        request = DrawRequest(
            arrays.edges[edge_type],
            rows_of(edge_type, frontier, hop, key, arrays),
            hop.fanouts[edge_type],
            self.reference,
            self.kernel,
            self.replacement,
        )
        for need in self.needs(edge_type):
            request = need.given(request, arrays)
        return request

    @abstractmethod
    def reference(self, request: DrawRequest) -> Neighbors:
        """Execute a draw in torch, with `Neighbors.edges`; see `DrawRequest.neighbors`."""

    def exact_weights(self, edge_type: EdgeType, arrays: Arrays) -> Tensor | None:
        """Return the coefficients of all edges in the sum that draws estimate: by default an error."""
        raise ValueError(
            f"{self}: does not define coefficients of all edges; draws may not estimate a fixed sum"
        )


def rows_of(edge_type: EdgeType, frontier: Frontier, hop: Hop, key: DrawKey, arrays: Arrays) -> HopRows:
    """Return the rows of a frontier, and the keys of their draws."""
    originals = arrays.original_ids.get(edge_type[2])
    return HopRows(frontier.nodes, key, stream(hop.number, edge_type), originals, frontier.tree)


def check_rule(rule: Rule, schema: Schema) -> None:
    """Raise ValueError unless the value is a rule that fits the graph."""
    instance_of(
        "rule",
        rule,
        RuleBase,
        "must be khop.Uniform(), Weighted(column), Temporal(column) or a value of another khop.RuleBase",
    )
    rule.check(schema)


def check_frontier(rule: Rule, frontier: Frontier) -> None:
    """Raise ValueError for missing time limits, and for optional fields that the rule does not read."""
    fields = rule.frontier_fields
    if frontier.until is None and FrontierField.UNTIL in fields:
        raise ValueError(f"{rule} needs time limits, but the frontier has none: give the seeds times")
    if frontier.until is not None and FrontierField.UNTIL not in fields:
        raise ValueError(f"the frontier has time limits, which {rule} does not support")
    if frontier.tree is not None and FrontierField.TREE not in fields:
        raise ValueError(f"the frontier has disjoint trees, which {rule} does not support")


def reads_times(rule: Rule) -> bool:
    """Return True if seeds must have times."""
    return FrontierField.UNTIL in rule.frontier_fields


def time_column(rule: Rule, edge_type: EdgeType) -> str | None:
    """Return the time column by which a rule limits draws of an edge type; None without one."""
    times = (need.column for need in rule.needs(edge_type) if isinstance(need, RisingTimes))
    return next(times, None) if reads_times(rule) else None


def _check_column(schema: Schema, rule: RuleBase, need: RuleNeed[Any]) -> None:
    column = need.column
    sources = {edge_type[0] for edge_type in schema.edge_types} if need.of_sources else ()
    types: tuple[NodeType | EdgeType, ...] = (*schema.edge_types, *sources)
    columns: dict[NodeType | EdgeType, Mapping[str, ColumnSpec]] = {
        type_: schema.columns.get(type_, {}) for type_ in types
    }
    having = {type_: of_type[column] for type_, of_type in columns.items() if column in of_type}
    if not having:
        there = [
            f"{name} of {type_ if isinstance(type_, str) else ' '.join(type_)}"
            for type_, of_type in columns.items()
            for name in sorted(of_type)
        ]
        raise ValueError(f"{rule}: no column {column!r}; there are {', '.join(there) or 'none'}")
    number = "integer" if need.of_integers else "number"
    for type_, spec in having.items():
        is_usable = not spec.shape and (not need.of_integers or spec.dtype not in _NOT_INTEGERS)
        if not need.any_column and not is_usable:
            raise ValueError(
                f"{rule}: column {column!r} of {type_!r} is {spec.dtype} of shape {spec.shape}: "
                f"one {number} per row is needed; write the graph with such a column"
            )
