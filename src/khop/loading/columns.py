"""Choice of a loader's columns, and one gather for all of them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from types import MappingProxyType

import torch
from torch import Tensor

from khop.arguments import as_mapping, instance_of
from khop.batch import Adjacency, Block, Columns, Sample, Subgraph
from khop.features.store import FeatureStore, Rows
from khop.loading.source import DeviceRows
from khop.schema import EdgeType, NodeType, Schema, type_of

Names = tuple[str, ...]
Type = NodeType | EdgeType
NamesByType = Mapping[NodeType | EdgeType, Sequence[str]]
EdgeColumns = Mapping[EdgeType, Mapping[str, Tensor]]
_Remaining = dict[EdgeType, dict[str, Tensor]]


class Narrow(StrEnum):
    """Output dtype of narrow columns: float16, bfloat16 and quantized ones."""

    FLOAT32 = "float32"  # converted during the gather, as models on the CPU need it
    STORED = "stored"  # half the bytes to copy to another device, which can convert them itself


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


def gather_columns(
    features: FeatureStore,
    choice: ColumnChoice,
    sample: Sample,
    on_device: Mapping[NodeType, DeviceRows] = MappingProxyType({}),
) -> tuple[Sample, Columns, Columns]:
    """Return the sample with its edge columns, the nodes' columns and the seeds' columns, by one gather.

    For nodes, only rows that are not on the device are gathered.
    """
    wanted: dict[NodeType | EdgeType, Rows] = {}
    for node_type in dict.fromkeys([*choice.of_nodes, *choice.of_seeds]):
        ids = sample.nodes[node_type]
        if node_type in on_device:
            ids = ids[on_device[node_type].others]
        wanted[node_type] = _node_rows(choice, sample, node_type, ids)
    for edge_type, names in choice.of_edges.items():
        widened = choice.as_float32.get(edge_type, frozenset())
        wanted[edge_type] = Rows(_edge_ids(sample, edge_type), names, as_float32=widened)
    gathered = features.gather(wanted)
    of_edges = {edge_type: gathered[edge_type] for edge_type in choice.of_edges}
    of_nodes = {t: {name: gathered[t][name] for name in names} for t, names in choice.of_nodes.items()}
    of_seeds = {
        t: {name: gathered[t][name][sample.seed_index[t]] for name in names}
        for t, names in choice.of_seeds.items()
    }
    return _with_edge_columns(sample, of_edges), of_nodes, of_seeds


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


def _node_rows(choice: ColumnChoice, sample: Sample, node_type: NodeType, ids: Tensor) -> Rows:
    """Return the rows to gather; columns that only seeds need stop after the seeds, which come first."""
    of_nodes = choice.of_nodes.get(node_type, ())
    of_seeds = [name for name in choice.of_seeds.get(node_type, ()) if name not in of_nodes]
    widened = choice.as_float32.get(node_type, frozenset())
    if not of_seeds:
        return Rows(ids, of_nodes, as_float32=widened)
    index = sample.seed_index[node_type]
    limit = int(index.max()) + 1 if index.numel() else 0
    names = (*of_nodes, *of_seeds)
    return Rows(ids, names, dict.fromkeys(of_seeds, limit), widened)


def _narrow_columns(schema: Schema, type_: Type) -> frozenset[str]:
    return frozenset(name for name, spec in schema.columns.get(type_, {}).items() if spec.is_narrow)


def _parts(sample: Sample, edge_type: EdgeType) -> list[Adjacency]:
    """Return the adjacencies with edges of a type: in the subgraph, also reversed, or in each block."""
    if sample.subgraph is not None:
        adjacencies = sample.subgraph.adjacencies
        return [adjacencies[t] for t in _types_of(sample.subgraph, edge_type) if t in adjacencies]
    return [b.adjacencies[edge_type] for b in sample.blocks if edge_type in b.adjacencies]


def _types_of(subgraph: Subgraph, edge_type: EdgeType) -> list[EdgeType]:
    """Return the types of the adjacencies with edge ids of `edge_type`."""
    return [edge_type, *(t for t, origin in subgraph.turned.items() if origin == edge_type)]


def _edge_ids(sample: Sample, edge_type: EdgeType) -> Tensor:
    """Return the edge ids of all adjacencies, concatenated."""
    ids = [part.edge_ids for part in _parts(sample, edge_type)]
    known = [of_part for of_part in ids if of_part is not None]
    if len(known) < len(ids):
        raise ValueError(f"columns of {edge_type}: the sampler gave no edge ids; make it with edge_ids=True")
    return torch.cat(known) if known else torch.empty(0, dtype=torch.int64)


def _with_edge_columns(sample: Sample, columns: EdgeColumns) -> Sample:
    if not columns:
        return sample
    remaining = {t: dict(of_type) for t, of_type in columns.items()}
    if sample.subgraph is not None:
        adjacencies = dict(sample.subgraph.adjacencies)
        for edge_type in columns:
            for part in _types_of(sample.subgraph, edge_type):
                _fill(adjacencies, part, remaining, edge_type)
        subgraph = replace(sample.subgraph, adjacencies=adjacencies)
        return replace(sample, subgraph=subgraph, blocks=subgraph.blocks())
    return replace(sample, blocks=tuple(_filled(block, remaining) for block in sample.blocks))


def _filled(block: Block, remaining: _Remaining) -> Block:
    adjacencies = dict(block.adjacencies)
    for edge_type in remaining:
        _fill(adjacencies, edge_type, remaining, edge_type)
    return replace(block, adjacencies=adjacencies)


def _fill(
    adjacencies: dict[EdgeType, Adjacency], part: EdgeType, remaining: _Remaining, edge_type: EdgeType
) -> None:
    """Give one adjacency the next rows of each column of `edge_type` and remove them from `remaining`."""
    if part not in adjacencies:
        return
    columns = remaining[edge_type]
    count = adjacencies[part].indices.numel()
    taken = {name: column[:count] for name, column in columns.items()}
    adjacencies[part] = replace(adjacencies[part], columns=taken)
    remaining[edge_type] = {name: column[count:] for name, column in columns.items()}
