"""Splits of links into training, validation and test: at random, by time, or by an edge column.

Message graphs never contain links that are still to be predicted. The functions work on the edges of this
process; ranks that store different edges split their edges separately.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from numbers import Real
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from khop.arguments import whole
from khop.draw import DrawKey, UniformNegatives, mix64, stream
from khop.graph.folder import TimeCutOffs
from khop.graph.store import CscGraph
from khop.kernels.csc import Csc
from khop.kernels.edge_times import EdgeTimes
from khop.kernels.philox import WORD, philox
from khop.schema import EdgeType, NodeType, Schema

_AT_ONCE = 1 << 20  # edges for which numbers are drawn at a time
_BELOW_ALL, _LARGEST = -1, (1 << 63) - 1  # bounds of the random numbers
_DIGIT = 16  # bits
Chosen = Mapping[EdgeType, tuple[Tensor, ...]]  # for each range of rows: int64 positions in it, ascending


@dataclass(frozen=True)
class Shares:
    """Number of links of each type in each part: a share below 1, or a count."""

    val: float | int
    test: float | int
    disjoint_share: float = 0.0  # of the training links: targets that are not in the message graph

    def __post_init__(self) -> None:
        for name, given in [*vars(self).items()]:
            count = whole(given)
            if count is None and (isinstance(given, bool) or not isinstance(given, Real)):
                raise ValueError(f"{name} {given!r}: must be a share from 0 to below 1, or a number of links")
            share: float = float(given) if count is None else count
            object.__setattr__(self, name, share)
            is_number = count is not None and name != "disjoint_share"
            if not share >= 0 or (not is_number and share >= 1):  # also catches NaN
                raise ValueError(f"{name} {share!r}: must be a share from 0 to below 1, or a number of links")

    def counts(self, edge_type: EdgeType, num_links: int) -> tuple[int, int, int]:
        """Return the number of links of validation, of test, and of training links that carry no message."""
        val, test = (
            share if isinstance(share, int) else int(share * num_links) for share in (self.val, self.test)
        )
        if num_links == 0:
            raise ValueError(f"links of {edge_type}: there are none to split; leave the edge type out")
        if val + test >= num_links:
            raise ValueError(
                f"val {self.val} and test {self.test} of {num_links:,} links of {edge_type} leave no links "
                "for training; lower them"
            )
        disjoint = int(self.disjoint_share * (num_links - val - test))
        return val, test, max(disjoint, 1) if self.disjoint_share else 0


@dataclass(frozen=True)
class LinkColumns:
    """Columns of the links of a split."""

    negatives: int = 1  # per link of validation and test
    label: str | None = None  # the edge column with the links' labels
    time: str | None = None  # the edge column with the links' times
    relation: str | None = None  # the edge column with the links' relations, whole numbers from 0 on

    def __post_init__(self) -> None:
        count = whole(self.negatives)
        if count is None or count < 0:
            raise ValueError(
                f"negatives {self.negatives!r}: must be 0 or more, for each link of validation and test"
            )
        object.__setattr__(self, "negatives", count)

    @property
    def of_training(self) -> LinkColumns:
        """The same settings for training links: their negatives are drawn anew in every epoch."""
        return replace(self, negatives=0)

    @property
    def eval_negatives(self) -> UniformNegatives:
        """The rule by which negatives are drawn."""
        return UniformNegatives(self.negatives, exact=True)


@dataclass(frozen=True)
class EdgeRange:
    """Consecutive rows of an edge type."""

    csc: Csc
    first: int = 0  # the node of row 0

    def ends(self, positions: Tensor) -> Tensor:
        """Return the ends of the edges at these positions: int64 (2, n), global ids, sources first."""
        self.csc.check_rows()
        rows = torch.searchsorted(self.csc.indptr, positions, right=True) - 1
        return torch.stack([self.csc.indices[positions].long(), rows + self.first])


@dataclass(frozen=True)
class CountedLinks:
    """Histogram of the links whose random number starts with `prefix`, by the next digit.

    A shift of 64 counts all links.
    """

    edge_type: EdgeType
    shift: int = 64  # bits of the number after the digit
    prefix: int = 0
    above: int = _BELOW_ALL  # numbers up to this one are left out

    def counts(self, numbers: Tensor) -> Tensor:
        """Return the counts of links with these random numbers, int64: one in all, or one for each digit."""
        numbers = numbers[numbers > self.above]
        if self.shift == 64:
            return torch.tensor([numbers.numel()])
        if self.shift + _DIGIT < 64:
            numbers = numbers[numbers >> self.shift + _DIGIT == self.prefix]
        return torch.bincount(numbers >> self.shift & (1 << _DIGIT) - 1, minlength=1 << _DIGIT)


class EdgesToSplit(Protocol):
    """The edges to split, with their columns: all edges of a graph, or those of one process."""

    @property
    def schema(self) -> Schema:
        """Node types and edge types of the graph."""
        ...

    @property
    def original_ids(self) -> Mapping[NodeType, Tensor]:
        """int64 (nodes) for renumbered types: ids before the renumbering."""
        ...

    @property
    def is_whole(self) -> bool:
        """True if this process has all edges."""
        ...

    def edge_ranges(self, edge_type: EdgeType) -> Sequence[EdgeRange]:
        """Return the ranges of rows in this process."""
        ...

    def total(self, counts: Tensor, of: CountedLinks) -> Tensor:
        """Return the sum of the counts of all processes. Each edge is counted by one process."""
        ...

    def num_nodes(self, node_type: NodeType) -> int:
        """Return the number of nodes of a type in the whole graph."""
        ...

    def edge_column(self, edge_type: EdgeType, name: str) -> Sequence[Tensor] | None:
        """Return a column of the edges in this process, by range of rows; None if the type lacks it."""
        ...

    def node_column(self, node_type: NodeType, name: str) -> Tensor | None:
        """Return a column of all nodes of a type; None if the type lacks it."""
        ...


@dataclass(frozen=True, eq=False)
class WholeEdges:
    """All edges of a graph in this process (an EdgesToSplit), with columns by type."""

    graph: CscGraph
    columns: Mapping[NodeType | EdgeType, Mapping[str, Tensor]] = field(default_factory=dict)
    is_whole: ClassVar[bool] = True

    @property
    def schema(self) -> Schema:
        """Node types and edge types of the graph."""
        return self.graph.schema

    @property
    def original_ids(self) -> Mapping[NodeType, Tensor]:
        """int64 (nodes) for renumbered types: ids before the renumbering."""
        return self.graph.originals

    def edge_ranges(self, edge_type: EdgeType) -> Sequence[EdgeRange]:
        """Return all rows as one range."""
        return (EdgeRange(self.graph.csc(edge_type)),)

    def total(self, counts: Tensor, of: CountedLinks) -> Tensor:
        """Return the counts unchanged: there is only this process."""
        return counts

    def num_nodes(self, node_type: NodeType) -> int:
        """Return the number of nodes of a type."""
        return self.graph.num_nodes(node_type)

    def edge_column(self, edge_type: EdgeType, name: str) -> Sequence[Tensor] | None:
        """Return a column of all edges as one range; None if the type lacks it."""
        columns = self.columns.get(edge_type, {})
        return (columns[name],) if name in columns else None

    def node_column(self, node_type: NodeType, name: str) -> Tensor | None:
        """Return a column of all nodes of a type; None if the type lacks it."""
        return self.columns.get(node_type, {}).get(name)


@dataclass(frozen=True)
class Part:
    """One part of a split, for the edges in this process: edges for messages, and links to predict."""

    kept: Chosen  # the edges that carry messages, of the split types and of their reverses
    links: Chosen
    limit: int | None = None  # negatives are nodes that exist before this time; None: all nodes


@dataclass(frozen=True)
class EdgeSplit:
    """The parts of a split."""

    train: Part  # `kept` is the one of `val` if no link is to be disjoint
    val: Part
    test: Part


@dataclass(frozen=True)
class _Dealt:
    """Random numbers of the edges of one type and of its reverse, and the bounds of the parts."""

    edge_type: EdgeType
    numbers: Chosen  # int64 (edges) for each range
    is_link: Sequence[Tensor]  # bool (edges of the type itself) for each range
    to_test: int  # this and the next two: the largest number of each part
    to_val: int
    to_disjoint: int

    def links(self, above: int, up_to: int) -> tuple[Tensor, ...]:
        """Return the positions of the links with numbers in (above, up_to]."""
        own = zip(self.is_link, self.numbers[self.edge_type], strict=True)
        return tuple(_places(is_link & (of > above) & (of <= up_to)) for is_link, of in own)

    def kept(self, above: int) -> dict[EdgeType, tuple[Tensor, ...]]:
        """Return the positions of the edges with numbers > `above`, of the type and of its reverse."""
        return {t: tuple(_places(of > above) for of in of_type) for t, of_type in self.numbers.items()}


def split_edges(
    edges: EdgesToSplit, edge_types: Sequence[EdgeType], shares: Shares, key: DrawKey
) -> EdgeSplit:
    """Split the edges of some types, and of their reverse types, into the three parts.

    All edges between two nodes go to the same part, in both directions, so that no edge reveals another.
    Training and validation pass messages over training edges, test over training and validation edges. For a
    symmetric edge type a link appears in one direction only. The part of an edge depends only on the key, the
    original ids of its ends, and the random numbers of all edges. Partitioning does not change it.
    """
    dealt = [_dealt(edges, edge_type, shares, key) for edge_type in edge_types]

    def heard(limits: Sequence[int]) -> Chosen:
        kept: dict[EdgeType, tuple[Tensor, ...]] = {}
        for one, above in zip(dealt, limits, strict=True):
            kept |= one.kept(above)
        return kept

    def asked(bounds: Sequence[tuple[int, int]]) -> Chosen:
        return {one.edge_type: one.links(*of_type) for one, of_type in zip(dealt, bounds, strict=True)}

    of_val = heard([one.to_val for one in dealt])
    of_train = heard([one.to_disjoint for one in dealt]) if shares.disjoint_share else of_val
    learnt = [(one.to_val, one.to_disjoint if one.to_disjoint > one.to_val else _LARGEST) for one in dealt]
    return EdgeSplit(
        train=Part(of_train, asked(learnt)),
        val=Part(of_val, asked([(one.to_test, one.to_val) for one in dealt])),
        test=Part(heard([one.to_test for one in dealt]), asked([(_BELOW_ALL, one.to_test) for one in dealt])),
    )


def as_first_numbered(edges: CscGraph, edge_type: EdgeType, positions: Tensor) -> Tensor:
    """Return link positions ordered by original destination id, then by position in the row."""
    original = edges.original_ids(edge_type[2])
    if original is None:
        return positions
    destinations = EdgeRange(edges.csc(edge_type)).ends(positions)[1]
    return positions[original[destinations].argsort(stable=True)]


def link_numbers(edges: EdgesToSplit, edge_type: EdgeType, key: DrawKey) -> Tensor:
    """Return the random numbers of the links of a type in this process, int64 (links)."""
    numbers = _pair_numbers(edges, edge_type, edge_type, _type_key(key, edge_type))
    return _of_links(numbers, _are_links(edges, edge_type))


def _dealt(edges: EdgesToSplit, edge_type: EdgeType, shares: Shares, key: DrawKey) -> _Dealt:
    key = _type_key(key, edge_type)
    reverse = edges.schema.reverse(edge_type)
    numbers = {edge_type: _pair_numbers(edges, edge_type, edge_type, key)}
    if reverse is not None and reverse != edge_type:
        numbers[reverse] = _pair_numbers(edges, edge_type, reverse, key)
    is_link = _are_links(edges, edge_type)
    of_links, all_links = _of_links(numbers[edge_type], is_link), CountedLinks(edge_type)
    counts = shares.counts(edge_type, int(edges.total(all_links.counts(of_links), all_links)))
    return _Dealt(edge_type, numbers, is_link, *_bounds(edges, edge_type, of_links, counts))


def _type_key(key: DrawKey, edge_type: EdgeType) -> DrawKey:
    return DrawKey(mix64(key.value ^ stream(0, edge_type)))


def _of_links(numbers: Sequence[Tensor], is_link: Sequence[Tensor]) -> Tensor:
    return torch.cat([of[links] for of, links in zip(numbers, is_link, strict=True)])


def _are_links(edges: EdgesToSplit, edge_type: EdgeType) -> list[Tensor]:
    """Return masks of the edges that are links: only one direction of a symmetric edge type."""
    found = []
    for edge_range in edges.edge_ranges(edge_type):
        is_link = torch.ones(edge_range.csc.num_edges, dtype=torch.bool)
        if edges.schema.reverse(edge_type) == edge_type:
            for start, positions in _chunks(edge_range.csc.num_edges):
                sources, destinations = _first_numbered(edges, edge_type, edge_range.ends(positions))
                torch.le(sources, destinations, out=is_link[start : start + _AT_ONCE])
        found.append(is_link)
    return found


def _pair_numbers(edges: EdgesToSplit, edge_type: EdgeType, of: EdgeType, key: DrawKey) -> tuple[Tensor, ...]:
    """Draw a number from 0 to 2^63 - 1 for each edge of a type, equal for all edges between the same nodes.

    `of` is the edge type itself or its reverse.
    """
    found = []
    for edge_range in edges.edge_ranges(of):
        numbers = torch.empty(edge_range.csc.num_edges, dtype=torch.int64)
        for start, positions in _chunks(edge_range.csc.num_edges):
            ends = edge_range.ends(positions) if of == edge_type else edge_range.ends(positions).flip(0)
            sources, destinations = _first_numbered(edges, edge_type, ends)
            if edge_type[0] == edge_type[2]:
                sources, destinations = (
                    torch.minimum(sources, destinations),
                    torch.maximum(sources, destinations),
                )
            counters = torch.stack(
                [sources & WORD, sources >> 32, destinations & WORD, destinations >> 32], dim=1
            )
            words = philox(key.value, counters)
            numbers[start : start + _AT_ONCE] = (words[:, 0] << 31) | (words[:, 1] >> 1)
        found.append(numbers)
    return tuple(found)


def _first_numbered(edges: EdgesToSplit, edge_type: EdgeType, ends: Tensor) -> tuple[Tensor, Tensor]:
    """Return the original ids of sources and destinations."""
    originals = edges.original_ids.get(edge_type[0]), edges.original_ids.get(edge_type[2])
    sources, destinations = (
        ids if original is None else original[ids] for ids, original in zip(ends, originals, strict=True)
    )
    return sources, destinations


def _chunks(count: int) -> Iterator[tuple[int, Tensor]]:
    """Yield the positions from 0 to `count` - 1 in chunks, each with its first position."""
    for start in range(0, count, _AT_ONCE):
        yield start, torch.arange(start, min(start + _AT_ONCE, count))


def _places(is_chosen: Tensor) -> Tensor:
    return is_chosen.nonzero().squeeze(1)


def _bounds(
    edges: EdgesToSplit, edge_type: EdgeType, numbers: Tensor, counts: tuple[int, int, int]
) -> tuple[int, int, int]:
    """Return the largest numbers of test, of validation and of training's disjoint links, in this order.

    If copies of one link fill validation and the disjoint share, the next link is the disjoint one.
    """
    val, test, disjoint = counts
    ends, links = (test, test + val, test + val + disjoint), CountedLinks(edge_type)
    to_test, to_val, to_disjoint = (
        _BELOW_ALL if end == 0 else _smallest(edges, links, numbers, end) for end in ends
    )
    rest = CountedLinks(edge_type, above=to_val)
    if disjoint and to_disjoint == to_val and int(edges.total(rest.counts(numbers), rest)):
        to_disjoint = _smallest(edges, rest, numbers, 1)
    return to_test, to_val, to_disjoint


def _smallest(edges: EdgesToSplit, links: CountedLinks, numbers: Tensor, rank: int) -> int:
    """Return the `rank`-th smallest number of all processes, counted from 1: digit by digit, by counting."""
    found, numbers = 0, numbers[numbers > links.above]
    for shift in range(64 - _DIGIT, -1, -_DIGIT):
        counted = replace(links, shift=shift, prefix=found)
        up_to = edges.total(counted.counts(numbers), counted).cumsum(0)
        digit = int(torch.searchsorted(up_to, rank))
        rank -= int(up_to[digit - 1]) if digit else 0
        found = found << _DIGIT | digit
        numbers = numbers[numbers >> shift == found]  # counted again by `counts`, of ever fewer
    return found


TIME = "time"  # the column of times
SPLIT = "split"  # the edge column of parts
PARTS = ("train", "val", "test")
_EDGES_AT_ONCE = 1 << 22  # edges


def split_by_time(edges: EdgesToSplit, edge_types: Sequence[EdgeType], cut_offs: TimeCutOffs) -> EdgeSplit:
    """Split the edges of some types by their times: training < val <= validation < test <= test.

    Training and validation pass messages over the edges of all types before `val`, test over those before
    `test`. A reverse type without times follows the pairs: no part has a reverse edge between the ends of a
    link that is still to be predicted. Negatives are nodes that exist before these times.
    """
    parts = {t: parts_by_time(edges, t, cut_offs) for t in edge_types}
    limits = (cut_offs.val, cut_offs.val, cut_offs.test)
    reverse_times = _reverse_times(edges, parts, cut_offs)
    kept = {
        limit: {
            **positions_before(edges, limit),
            **{t: _positions(times, below=limit) for t, times in reverse_times.items()},
        }
        for limit in dict.fromkeys(limits)
    }
    train, val, test = (
        Part(kept[limit], _of_part(parts, number), limit) for number, limit in enumerate(limits)
    )
    return EdgeSplit(train, val, test)


def split_by_column(edges: EdgesToSplit, edge_types: Sequence[EdgeType]) -> EdgeSplit:
    """Split the edges of some types by their column `split`: 0 training, 1 validation, 2 test, -1 none.

    Training and validation pass messages over training edges, test over those of training and validation.
    The same holds for other edge types with such a column. A reverse type without one follows the pairs: no
    part has a reverse edge between the ends of an edge that it lacks. Other edge types are kept.
    """
    has_parts = [t for t in edges.schema.edge_types if edges.edge_column(t, SPLIT) is not None]
    parts = {t: parts_by_column(edges, t) for t in dict.fromkeys([*edge_types, *has_parts])}
    messages = {**parts, **_reverse_parts(edges, parts, SPLIT)}
    kept = [{t: _positions(of, above=-1, below=end) for t, of in messages.items()} for end in (1, 2)]
    asked = {t: parts[t] for t in edge_types}
    train, val, test = (
        Part(of_part, _of_part(asked, number)) for number, of_part in enumerate((kept[0], kept[0], kept[1]))
    )
    return EdgeSplit(train, val, test)


def parts_by_time(edges: EdgesToSplit, edge_type: EdgeType, cut_offs: TimeCutOffs) -> list[Tensor]:
    """Return the part of each edge of a type by its time, int64, by range of rows: the place in `PARTS`."""
    times = edge_times(edges, edge_type)
    if times is None:
        raise ValueError(f"links of {edge_type} have no column {TIME!r} to split by; add times")
    return [(of >= cut_offs.val).long() + (of >= cut_offs.test).long() for of in times]


def parts_by_column(edges: EdgesToSplit, edge_type: EdgeType) -> list[Tensor]:
    """Return the part of each edge of a type by its column `split`, int64, by range of rows; -1: none."""
    ranges = edges.edge_column(edge_type, SPLIT)
    if ranges is None:
        raise ValueError(
            f"links of {edge_type} have no column {SPLIT!r} to split by; give the edge type a split in the "
            "import spec"
        )
    return [of.long() for of in ranges]


def check_parts(edge_type: EdgeType, counts: Mapping[str, int]) -> None:
    """Raise ValueError for a part of a split without links; `counts` are those of all processes."""
    for name, count in counts.items():
        if not count:
            raise ValueError(f"links of {edge_type}: none is of {name}; change the split, or import more")


def positions_before(edges: EdgesToSplit, limit: int) -> Chosen:
    """Return the positions of the edges before a time, for each edge type with times.

    The time of an edge is that of its time column, that of its source, or the later of both.
    """
    return {t: _positions(times, below=limit) for t, times in _timed(edges)}


def nodes_with_edges_before(edges: EdgesToSplit, limit: int) -> dict[NodeType, Tensor]:
    """Mark the ends of edges before a time, bool (nodes), for the node types at ends of types with times."""
    touched: dict[NodeType, Tensor] = {}
    for edge_type, times in _timed(edges):
        for node_type in edge_type[::2]:
            touched.setdefault(node_type, torch.zeros(edges.num_nodes(node_type), dtype=torch.bool))
        for edge_range, at in zip(edges.edge_ranges(edge_type), _positions(times, below=limit), strict=True):
            for some in at.split(_EDGES_AT_ONCE):
                for node_type, ends in zip(edge_type[::2], edge_range.ends(some), strict=True):
                    touched[node_type][ends] = True
    return touched


def nodes_before(
    edges: EdgesToSplit, limit: int, touched: Mapping[NodeType, Tensor]
) -> dict[NodeType, Tensor]:
    """Mark the nodes that exist before a time, bool (nodes), for types with times or edges with times.

    A node exists from its time on, a node without a time from its first edge on. `touched` marks the ends of
    the edges of all processes; see `nodes_with_edges_before`.
    """
    own = {t: edges.node_column(t, TIME) for t in edges.schema.node_types}
    return {**touched, **{t: times < limit for t, times in own.items() if times is not None}}


def edge_times(edges: EdgesToSplit, edge_type: EdgeType) -> list[Tensor] | None:
    """Return the times of the edges of a type, int64, by range of rows; None if the type has none."""
    ranges, sources = edges.edge_ranges(edge_type), edges.node_column(edge_type[0], TIME)
    own = edges.edge_column(edge_type, TIME)
    if own is None and sources is None:
        return None
    of_ranges = [None] * len(ranges) if own is None else own
    return [EdgeTimes(of, sources).of(each.csc) for of, each in zip(of_ranges, ranges, strict=True)]


def _reverse_times(
    edges: EdgesToSplit, parts: Mapping[EdgeType, Sequence[Tensor]], cut_offs: TimeCutOffs
) -> dict[EdgeType, list[Tensor]]:
    """Return times for the edges of reverse types without them, int64, by range of rows.

    They are not before the start of the part of the links between the same nodes.
    """
    starts = torch.tensor([torch.iinfo(torch.int64).min, cut_offs.val, cut_offs.test])
    found = {}
    for edge_type, of_ranges in _reverse_parts(edges, parts, TIME).items():
        times = [starts[of] for of in of_ranges]
        own = edge_times(edges, edge_type)
        found[edge_type] = times if own is None else [*map(torch.maximum, times, own)]
    return found


def _reverse_parts(
    edges: EdgesToSplit, parts: Mapping[EdgeType, Sequence[Tensor]], name: str
) -> dict[EdgeType, list[Tensor]]:
    """Return the parts of the edges of reverse types without the column of this name, by range of rows.

    The part of an edge, int64, is the last one of the links between its ends, or the first if there are none.
    Links of no part count as a part after all others.
    """
    found = {}
    for edge_type, of_ranges in parts.items():
        reverse = edges.schema.reverse(edge_type)
        columns = [edges.edge_column(t, name) for t in (edge_type, reverse) if t is not None]
        if reverse is None or reverse == edge_type or all(column is not None for column in columns):
            continue
        if not edges.is_whole:
            raise ValueError(
                f"links of {edge_type} are split by the column {name!r}, which their reverse type {reverse} "
                "lacks: only a process with all edges can match reverse edges and links by their ends; give "
                f"{reverse} the column {name!r}, or use the whole graph in each process"
            )
        found[reverse] = _matched_parts(edges, edge_type, reverse, of_ranges)
    return found


def _matched_parts(
    edges: EdgesToSplit, edge_type: EdgeType, reverse: EdgeType, parts: Sequence[Tensor]
) -> list[Tensor]:
    """Return the last part of the links between the ends of each reverse edge; see `_reverse_parts`."""
    ranges = [*zip(edges.edge_ranges(edge_type), parts, strict=True)]
    later = [(each, of, _places(of != 0)) for each, of in ranges]
    sources, destinations = torch.cat([each.ends(at) for each, _, at in later], dim=1)
    of_links = torch.cat([of[at] for _, of, at in later])
    of_links = torch.where(of_links < 0, len(PARTS), of_links)
    known, numbers = sources.unique(return_inverse=True)
    num_nodes = edges.num_nodes(edge_type[2])
    pairs, rows = (numbers * num_nodes + destinations).unique(return_inverse=True)
    last = of_links.new_zeros(pairs.numel()).scatter_reduce_(0, rows, of_links, "amax")
    found = []
    for edge_range in edges.edge_ranges(reverse):
        matched = torch.zeros(edge_range.csc.num_edges, dtype=torch.int64)
        for start, positions in _chunks(edge_range.csc.num_edges) if pairs.numel() else ():
            ends = edge_range.ends(positions)
            source = torch.searchsorted(known, ends[1]).clamp_(max=known.numel() - 1)
            pair = source * num_nodes + ends[0]
            place = torch.searchsorted(pairs, pair).clamp_(max=pairs.numel() - 1)
            is_link = (known[source] == ends[1]) & (pairs[place] == pair)
            matched[start : start + _AT_ONCE] = last[place] * is_link
        found.append(matched)
    return found


def _of_part(parts: Mapping[EdgeType, Sequence[Tensor]], number: int) -> Chosen:
    """Return the positions of the edges of each type in the part of this number."""
    return {t: _positions(of_type, above=number - 1, below=number + 1) for t, of_type in parts.items()}


def _timed(edges: EdgesToSplit) -> Iterator[tuple[EdgeType, list[Tensor]]]:
    """Yield the edge types with times, and the times."""
    for edge_type in edges.schema.edge_types:
        times = edge_times(edges, edge_type)
        if times is not None:
            yield edge_type, times


def _positions(of_ranges: Sequence[Tensor], *, below: int, above: int | None = None) -> tuple[Tensor, ...]:
    """Return for each range of rows the positions of values within limits, exclusive."""
    return tuple(
        torch.nonzero(of < below if above is None else (of > above) & (of < below)).squeeze(1)
        for of in of_ranges
    )
