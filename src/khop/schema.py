"""Schema of a graph: its node types, edge types and columns, without the arrays.

Internal: its names may change in any version. The public ones are in `khop.__all__`.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from khop.arguments import list_of, mapping_of

NodeType = str
EdgeType = tuple[str, str, str]
Type = NodeType | EdgeType
EdgeTypeName = EdgeType | str  # ("user", "buys", "item"), or "user buys item"
Value = TypeVar("Value")
NARROW_FLOATS = ("float16", "bfloat16")


@dataclass(frozen=True)
class ColumnSpec:
    """Dtype and shape of one column, per node or edge.

    Args:
        dtype: Name of the logical dtype, as in torch: "float32", "int64", "uint8", ...
        shape: Shape of one row; () for a scalar column.
        num_classes: Number of classes of a label column, in which -1 means "unknown"; default None: not
            a label column.
        scales: Scales of a quantized column, one per entry of a row; default None.
        sparse_width: Width of the dense rows of a sparse column, whose shape is (2, longest); default
            None: dense.
    Example:
        >>> graph = khop.open_graph("debian")
        >>> graph.schema.column("package", "section")
        ColumnSpec(dtype='int64', shape=(), num_classes=58, scales=None, sparse_width=None)
    """

    dtype: str
    shape: tuple[int, ...]
    num_classes: int | None = None
    scales: tuple[float, ...] | None = None
    sparse_width: int | None = None

    @property
    def width(self) -> int:
        """Number of entries of a row; for a sparse column, that of the dense row."""
        return math.prod(self.shape) if self.sparse_width is None else self.sparse_width

    @property
    def is_narrow(self) -> bool:
        """True if the column stores float32 numbers in fewer bits: as half floats or as scaled integers."""
        return self.dtype in NARROW_FLOATS or self.scales is not None


Specs = Mapping[Type, Mapping[str, ColumnSpec]]  # dtype and shape of every column, by type


@dataclass(frozen=True)
class Schema:
    """Node types, edge types `(source, relation, destination)` and their columns.

    A homogeneous graph is a schema with one node type and one edge type.

    Args:
        node_types: Names of the node types.
        edge_types: Edge types as triples, or as strings such as "user buys item".
        reverse_of: Edge type with the same edges in the opposite direction, by edge type; default none.
        columns: Column specs by type and name; default none.
    Raises:
        ValueError: A type is repeated, or an edge type names a missing node type.
    Example:
        >>> schema = khop.Schema(["user", "item"], ["user buys item"])
        >>> schema.into("item")
        (('user', 'buys', 'item'),)
    """

    node_types: tuple[NodeType, ...]
    edge_types: tuple[EdgeType, ...]
    reverse_of: Mapping[EdgeType, EdgeType] = field(default_factory=dict)
    columns: Mapping[NodeType | EdgeType, Mapping[str, ColumnSpec]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(
            self, "node_types", tuple(list_of("node types", self.node_types, '["user", "item"]'))
        )
        list_of("edge types", self.edge_types, '["user buys item"]')
        object.__setattr__(self, "edge_types", tuple(edge_type_of(t) for t in self.edge_types))
        reverse_of = {edge_type_of(t): edge_type_of(back) for t, back in self.reverse_of.items()}
        object.__setattr__(self, "reverse_of", reverse_of)
        for kind, names in (("node", self.node_types), ("edge", self.edge_types)):
            if len(set(names)) != len(names):
                raise ValueError(f"{kind} types {names}: a name is repeated")
        for type_, columns in self.columns.items():
            for name, spec in columns.items():
                check_width(f"column {name!r} of {type_!r}", spec.shape)
        for edge_type in self.edge_types:
            for end in (edge_type[0], edge_type[2]):
                if end not in self.node_types:
                    raise ValueError(
                        f"edge type {edge_type}: no node type {end!r}; there are {self.node_types}"
                    )

    @property
    def node_columns(self) -> tuple[str, ...]:
        """Names of all node columns, each once, in ascending order."""
        return tuple(sorted({name for t in self.node_types for name in self.columns.get(t, {})}))

    def column(self, type_: NodeType | EdgeType, name: str) -> ColumnSpec:
        """Return the spec of one column; ValueError lists the existing columns.

        Args:
            type_: Node type or edge type.
            name: Name of the column.
        """
        type_ = type_of(self, type_)
        columns = self.columns.get(type_, {})
        if type_ not in self.node_types and type_ not in self.edge_types:
            there = [*self.node_types, *self.edge_types]
            raise ValueError(f"column {name!r} of {type_!r}: not a type of the graph; there are {there}")
        if name not in columns:
            raise ValueError(f"column {name!r} of {type_!r}: not in the graph; there are {sorted(columns)}")
        return columns[name]

    def label_column(
        self, node_type: NodeType | None = None, name: str | None = None
    ) -> tuple[NodeType, str]:
        """Return a node type and its label column.

        Args:
            node_type: Node type; may be omitted if only one has labels.
            name: Column; may be omitted if the type has only one label column.
        """
        there = {
            t: [n for n, spec in self.columns.get(t, {}).items() if spec.num_classes] for t in self.node_types
        }
        chosen = _chosen("node type with labels", node_type, [t for t, names in there.items() if names])
        return chosen, _chosen(f"label column of {chosen!r}", name, there[chosen])

    def reverse(self, edge_type: EdgeTypeName) -> EdgeType | None:
        """Return the edge type with the same edges in the opposite direction, or None.

        Args:
            edge_type: The edge type; either of the two may declare the other.
        """
        edge_type = edge_type_of(edge_type)
        if edge_type in self.reverse_of:
            return self.reverse_of[edge_type]
        return next((t for t, reverse in self.reverse_of.items() if reverse == edge_type), None)

    def only(self, edge_types: Collection[EdgeTypeName]) -> Schema:
        """Return the schema with only some edge types, in schema order, and the node types at their ends.

        Args:
            edge_types: Edge types to keep.
        """
        edge_types = {edge_type_of(edge_type) for edge_type in edge_types}
        kept = tuple(edge_type for edge_type in self.edge_types if edge_type in edge_types)
        ends = {end for source, _, destination in kept for end in (source, destination)}
        node_types = tuple(node_type for node_type in self.node_types if node_type in ends)
        reverses = {t: back for t, back in self.reverse_of.items() if t in kept and back in kept}
        known = {*kept, *node_types}
        return Schema(
            node_types, kept, reverses, {t: of_type for t, of_type in self.columns.items() if t in known}
        )

    def into(self, node_type: NodeType) -> tuple[EdgeType, ...]:
        """Return the edge types with a destination type, in schema order.

        Args:
            node_type: The destination type.
        """
        return tuple(edge_type for edge_type in self.edge_types if edge_type[2] == node_type)


def check_width(name: str, shape: tuple[int, ...]) -> None:
    """Raise ValueError if rows of this shape are empty."""
    if 0 in shape:
        width = "width 0" if len(shape) == 1 else f"rows of shape {shape}"
        raise ValueError(f"{name} has {width}, so it has no entries: leave the column out")


def edge_type_of(given: object) -> EdgeType:
    """Return an edge type as a triple, from a triple or from three words, "user buys item"."""
    words = given.split() if isinstance(given, str) else given
    match words:
        case [str(source), str(relation), str(destination)]:
            return source, relation, destination
    raise ValueError(
        f"edge type {given!r}: give source type, relation and destination type, "
        'as ("user", "buys", "item") or "user buys item"'
    )


def by_edge_type(given: Mapping[EdgeType, Value] | Mapping[str, Value]) -> dict[EdgeType, Value]:
    """Return the values by edge type triples; ValueError if an edge type occurs twice."""
    mapping_of("edge types", given, "edge types to their values")
    found: dict[EdgeType, Value] = {}
    for name, value in given.items():
        edge_type = edge_type_of(name)
        if edge_type in found:
            raise ValueError(f"edge type {name!r}: given twice, as a string and as a tuple; give it once")
        found[edge_type] = value
    return found


def type_of(schema: Schema, given: object) -> NodeType | EdgeType:
    """Return a node type of the schema unchanged, and anything else as an edge type."""
    if isinstance(given, str) and (given in schema.node_types or len(given.split()) != 3):
        return given
    return edge_type_of(given)


def only(by_type: Mapping[NodeType, Value] | Mapping[EdgeType, Value], what: str) -> Value:
    """Return the only value of a mapping. The public API unwraps homogeneous graphs this way."""
    if len(by_type) != 1:
        raise ValueError(f"{what}: the graph has {len(by_type)} of them; name one of {list(by_type)}")
    return next(iter(by_type.values()))


def sole_type(types: Iterable[NodeType], what: str) -> NodeType:
    """Return the only node type; ValueError if there are several."""
    names = tuple(types)
    if len(names) != 1:
        raise ValueError(f"{what}: the graph has node types {names}; name one")
    return names[0]


def _chosen(what: str, named: str | None, there: list[str]) -> str:
    if not there:
        asked = "" if named is None else f", {named!r} included"
        raise ValueError(
            f"{what}: the graph has none{asked}; give the number of classes when the graph is written, "
            'khop.NodeTable(..., num_classes={"y": 5})'
        )
    if named is None and len(there) == 1:
        return there[0]
    if named is None:
        raise ValueError(f"{what}: name one of {there}")
    if named not in there:
        raise ValueError(f"{what} is {named!r}: must be one of {there}")
    return named
