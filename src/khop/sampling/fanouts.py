"""Fanouts of a hop: the number of neighbors to draw, one for all edge types or one per edge type."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase

from khop.arguments import as_mapping, list_of, shown, whole
from khop.schema import EdgeType, Schema

Numbers = Mapping[EdgeType | str, int]
# -1 = all neighbors, 0 = none. For mappings see `fanout_by_type`.
Fanout = int | Numbers | Mapping[EdgeType, int] | Mapping[str, int]


def fanout_by_type(schema: Schema, fanout: Fanout) -> dict[EdgeType, int]:
    """Return a hop's fanout for every edge type, in schema order.

    A mapping's keys are edge types or patterns of edge types: `"user buys item"`, `"user * item"`, `"*"`.
    The exact name of an edge type takes precedence, then the first pattern that matches. ValueError names an
    edge type without a fanout, or a key that applies to no edge type.
    """
    named: Numbers = as_mapping(fanout, lambda number: {"*": number})
    keys = {edge_type: _key(named, edge_type) for edge_type in schema.edge_types}
    there = ", ".join(f'"{" ".join(edge_type)}"' for edge_type in schema.edge_types)
    used = set(keys.values())
    for key in named if schema.edge_types else ():
        if key not in used:
            others = isinstance(key, str) and _fitting(key, schema)
            why = "comes after what fits the same edge types" if others else f"fits no edge type of {there}"
            raise ValueError(f"fanout {named[key]!r} for {key!r}: {why}; leave it out or correct it")
    return {edge_type: _checked(named, key, edge_type) for edge_type, key in keys.items()}


def fanouts_by_type(schema: Schema, fanouts: Sequence[Fanout]) -> tuple[dict[EdgeType, int], ...]:
    """Return every hop's fanout by edge type; ValueError unless `fanouts` is a list with an entry per hop."""
    example = '[10, {"user buys item": 5, "*": 2}], an entry per hop, the seeds\' first'
    hops = list_of("fanouts", fanouts, example)
    return tuple(fanout_by_type(schema, fanout) for fanout in hops)


def followed_types(schema: Schema, fanouts: Sequence[Fanout]) -> tuple[EdgeType, ...]:
    """Return the edge types that at least one hop draws from, in schema order."""
    hops = fanouts_by_type(schema, fanouts)
    return tuple(t for t in schema.edge_types if any(hop[t] for hop in hops))


def _key(named: Numbers, edge_type: EdgeType) -> EdgeType | str | None:
    """Return the key that gives the fanout of an edge type."""
    words = " ".join(edge_type)
    for own in (edge_type, words):
        if own in named:
            return own
    return next((key for key in named if isinstance(key, str) and fnmatchcase(words, key)), None)


def _fitting(pattern: str, schema: Schema) -> bool:
    return any(fnmatchcase(" ".join(edge_type), pattern) for edge_type in schema.edge_types)


def _checked(named: Numbers, key: EdgeType | str | None, edge_type: EdgeType) -> int:
    if key is None:
        raise ValueError(
            f"no fanout for {edge_type}: name it (0 draws none of it), or give '*' a number, which is for "
            "all that are not named"
        )
    number = whole(named[key])
    if number is None or number < -1:
        raise ValueError(
            f"fanout {shown(named[key])} for {edge_type}: must be 0 or more, or -1 for all neighbors"
        )
    return number
