"""Choice of the columns of a loader."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from khop.arguments import as_mapping, instance_of
from khop.schema import EdgeType, NodeType, Schema, Type, type_of

Names = tuple[str, ...]
NamesByType = Mapping[NodeType | EdgeType, Sequence[str]]


class Narrow(StrEnum):
    """Output dtype of narrow columns: float16, bfloat16 and quantized ones."""

    FLOAT32 = "float32"  # converted during the gather, as models on the CPU need it
    STORED = "stored"  # half the bytes to copy to another device, which can convert them itself


class Gather(StrEnum):
    """Time at which rows of input columns are gathered."""

    AHEAD = "ahead"  # with the batch, before the model needs it
    DEFERRED = "deferred"  # by the model: a first layer that aggregates them reads the table itself


@dataclass(frozen=True)
class ColumnChoice:
    """The columns of every batch, by type; the graph has all of them."""

    of_nodes: Mapping[NodeType, Names] = field(default_factory=dict)
    of_edges: Mapping[EdgeType, Names] = field(default_factory=dict)
    of_seeds: Mapping[NodeType, Names] = field(default_factory=dict)
    as_float32: Mapping[Type, frozenset[str]] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        schema: Schema,
        columns: Sequence[str] | NamesByType,
        seed_columns: Sequence[str] | NamesByType,
        seed_types: Sequence[NodeType],
        narrow: Narrow = Narrow.FLOAT32,
    ) -> ColumnChoice:
        """Check the requested columns. A plain list applies to each node (or seed) type with the column."""
        asked = _by_type(schema, columns, schema.node_types, "columns")
        asked_of_seeds = _by_type(schema, seed_columns, seed_types, "seed_columns")
        for type_ in asked_of_seeds:
            if type_ not in seed_types:
                raise ValueError(f"seed_columns of {type_!r}: there are seeds of {list(seed_types)}")
        types = {**asked, **asked_of_seeds} if Narrow(narrow) is Narrow.FLOAT32 else {}
        widened = {t: _narrow_columns(schema, t) for t in types}
        return cls(
            {t: names for t, names in asked.items() if isinstance(t, str)},
            {t: names for t, names in asked.items() if isinstance(t, tuple)},
            {t: names for t, names in asked_of_seeds.items() if isinstance(t, str)},
            {t: names for t, names in widened.items() if names},
        )

    @property
    def is_empty(self) -> bool:
        """True if there is nothing to gather."""
        return not (self.of_nodes or self.of_edges or self.of_seeds)


def _by_type(
    schema: Schema, asked: Sequence[str] | NamesByType, types: Sequence[NodeType], what: str
) -> dict[NodeType | EdgeType, Names]:
    """Return the names of each type without duplicates; a plain list applies to `types`."""

    def where_they_are(names: Sequence[str]) -> dict[NodeType, Names]:
        there = {t: schema.columns.get(t, {}) for t in types}
        for name in _list_of_names(names, what):
            if not any(name in columns for columns in there.values()):
                known = {t: sorted(columns) for t, columns in there.items()}
                raise ValueError(f"{what}: no node type has a column {name!r}; there are {known}")
        return {t: tuple(name for name in names if name in columns) for t, columns in there.items()}

    named = {type_of(schema, t): names for t, names in as_mapping(asked, where_they_are).items()}
    return {t: _names(schema, t, names, what) for t, names in named.items() if names}


def _names(schema: Schema, type_: NodeType | EdgeType, names: Sequence[str], what: str) -> Names:
    for name in _list_of_names(names, what):
        instance_of(f"{what} of {type_!r}:", name, str, "must be names of columns, as text")
        schema.column(type_, name)
    return tuple(dict.fromkeys(names))


def _list_of_names(given: Sequence[str], what: str) -> Sequence[str]:
    if isinstance(given, str) or not isinstance(given, Collection):
        example = [given] if isinstance(given, str) else ["x"]
        raise ValueError(f"{what} {given!r}: give a list of names, {example}")
    return given


def _narrow_columns(schema: Schema, type_: Type) -> frozenset[str]:
    return frozenset(name for name, spec in schema.columns.get(type_, {}).items() if spec.is_narrow)
