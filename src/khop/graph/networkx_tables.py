"""Nodes, edges and attributes of a NetworkX graph as arrays."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, count
from numbers import Real
from typing import Any

import numpy as np
import numpy.typing as npt

Columns = dict[str, npt.NDArray[Any]]
MISSING = "_missing"  # ending of the edge column that marks edges without a value
_LISTS = (list, tuple, np.ndarray)
_WHOLE = 2**24  # float32 has all whole numbers up to it
_WEIGHT = "weight"  # networkx takes 1 for an edge without it


@dataclass(frozen=True)
class NetworkxTables:
    """The content of a graph. Node i is the i-th of `graph.nodes`."""

    ids: Sequence[Hashable]
    sources: npt.NDArray[np.int64]
    destinations: npt.NDArray[np.int64]
    node_columns: Columns
    edge_columns: Columns
    notes: Sequence[str]  # missing values, and attributes that are left out

    @classmethod
    def of(cls, graph: Any) -> NetworkxTables:  # noqa: ANN401
        """Read a graph. Each edge of an undirected graph is read once.

        Numeric attributes become columns, and so do lists of numbers that all nodes or all edges have.
        Integers are int64; for floats see `narrowed`. A missing number is NaN for a node. For an edge it is 1
        in `weight`, and 0 in other columns, with a 1 in a column NAME_missing. Other attributes are omitted.
        Each case has a note.
        """
        rows = {node: row for row, node in enumerate(graph.nodes)}
        edges = list(graph.edges(data=True))
        ends = np.array([(rows[u], rows[v]) for u, v, _ in edges], np.int64).reshape(-1, 2)
        of_nodes = _with_defaults([given for _, given in graph.nodes(data=True)], graph, "node_default")
        of_edges = _with_defaults([given for _, _, given in edges], graph, "edge_default")
        node_columns, node_notes = attribute_columns(of_nodes, "nodes")
        edge_columns, edge_notes = attribute_columns(of_edges, "edges")
        sources, destinations = ends[:, 0].copy(), ends[:, 1].copy()
        notes = node_notes + edge_notes
        return cls(list(rows), sources, destinations, node_columns, edge_columns, notes)


def _with_defaults(given: list[Mapping[Any, Any]], graph: Any, name: str) -> list[Mapping[Any, Any]]:  # noqa: ANN401
    """Add the defaults that GraphML and GEXF files declare, which networkx stores next to the graph."""
    defaults = graph.graph.get(name) or {}
    return [{**defaults, **one} for one in given] if defaults else given


def attribute_columns(given: Sequence[Mapping[Any, Any]], what: str) -> tuple[Columns, list[str]]:
    """Return the attributes of nodes or edges as columns, with notes; see `NetworkxTables.of`."""
    found: Columns = {}
    notes: list[str] = []
    names = dict.fromkeys(name for one in given for name in one)
    for name in names:
        values = [one.get(name) for one in given]
        absent = np.array([value is None or value != value for value in map(_scalar, values)])
        if all(value is None for value in values):
            notes.append(f"attribute {name!r} of {what} is omitted: it has no values")
            continue
        column = _column(values, absent)
        if column is None:
            notes.append(f"attribute {name!r} of {what} is omitted: {_reason(values)}")
            continue
        found[str(name)] = column
        if rounded := _rounded(values, column):
            notes.append(f"attribute {name!r}: {rounded:,} whole numbers beyond 2**53 are rounded")
        if absent.any():
            fill = "they get NaN"
            if what == "edges":
                ends = chain([""], (f".{at}" for at in count(2)))
                mark = next(one for end in ends if (one := f"{name}{MISSING}{end}") not in names)
                fill = "they get 1" if name == _WEIGHT else f"they get 0, and 1 in {mark}"
                column[absent] = name == _WEIGHT
                if name != _WEIGHT:
                    found[mark] = absent.astype(np.uint8)
            notes.append(
                f"attribute {name!r}: {absent.sum():,} of {len(values):,} {what} have no number; {fill}"
            )
    return found, notes


def _scalar(value: Any) -> Any:  # noqa: ANN401
    """Return a number unchanged, and any other value as one that is equal to itself."""
    return value if value is None or isinstance(value, Real) else ""


def _column(values: Sequence[Any], absent: npt.NDArray[np.bool_]) -> npt.NDArray[Any] | None:
    """Return a column; None if a value is not a number, or if lists differ in length or are missing."""
    kind: Any = _LISTS if any(isinstance(one, _LISTS) for one in values) else Real
    if not all(isinstance(one, kind) or (kind is Real and one is None) for one in values) or absent.all():
        return None
    try:
        array = np.asarray([np.nan if one is None else one for one in values] if kind is Real else values)
        array = array.astype(np.float64) if array.dtype.kind in "Ou" else array
    except (ValueError, TypeError, OverflowError):
        return None
    if array.dtype.kind not in "ifb":
        return None
    return narrowed(array) if array.dtype.kind == "f" else array


def _rounded(values: Sequence[Any], column: npt.NDArray[Any]) -> int:
    """Return the number of integers that a float column does not represent exactly."""
    if column.dtype.kind != "f" or column.ndim > 1:
        return 0
    pairs = zip(values, column, strict=True)
    return sum(isinstance(one, int | np.integer) and int(one) != int(number) for one, number in pairs)


def entries(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return the entries of a matrix as stored: integers as float32 up to 2**24, else as int64.

    Other numbers are those of `narrowed`, and so are integers beyond int64.
    """
    if values.dtype.kind not in "iu":
        return narrowed(values)
    least, most = int(values.min(initial=0)), int(values.max(initial=0))
    is_small = least >= -_WHOLE and most <= _WHOLE
    return narrowed(values) if is_small or most > np.iinfo(np.int64).max else values.astype(np.int64)


def narrowed(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return float32, or float64 for a vector with a number from 2**24 on that float32 would change.

    float32 has no fractions from 2**24 on: such numbers are times, ids and amounts. Smaller ones are rounded,
    and so are lists of any numbers. Numbers beyond the range of float32 always need float64.
    """
    with np.errstate(over="ignore"):
        narrow = array.astype(np.float32)
    least = _WHOLE if array.ndim == 1 else np.finfo(np.float32).max
    is_lossy = ((narrow != array) & (np.abs(array) >= least)).any()
    return array.astype(np.float64) if is_lossy else narrow


def _reason(values: Sequence[Any]) -> str:
    if any(isinstance(value, str) for value in values):
        return "it has text"
    is_list = any(isinstance(value, list | tuple | np.ndarray) for value in values)
    return (
        "its lists are not numbers of one length for all" if is_list else "it has values that are not numbers"
    )
