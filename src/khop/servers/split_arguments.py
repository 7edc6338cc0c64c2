"""Arguments of a split of links, as clients send them to servers, and servers to each other."""

from __future__ import annotations

from dataclasses import dataclass

from khop.draw import DrawKey, Purpose
from khop.graph.edge_draws import check_edge_type
from khop.graph.import_record import TimeCutOffs
from khop.sampling.link_split import LinkColumns, Shares
from khop.schema import EdgeType, NodeType, Schema
from khop.servers.json_fields import Document, Plain

_MOST_TIME = (1 << 63) - 1


@dataclass(frozen=True)
class ByColumn:
    """A split of links by their column `split`."""


SplitMethod = Shares | TimeCutOffs | ByColumn  # at random, by time, by a column
_NAMES = {Shares: "random", TimeCutOffs: "time", ByColumn: "column"}


@dataclass(frozen=True)
class SplitArguments:
    """The arguments of a split of links. Equal arguments are equal as plain values, too."""

    edge_types: tuple[EdgeType, ...]
    method: SplitMethod
    columns: LinkColumns
    seed: int

    @property
    def key(self) -> DrawKey:
        """The key of all draws of the split."""
        return DrawKey.of(self.seed, Purpose.SPLIT)

    @property
    def plain(self) -> dict[str, Plain]:
        """The arguments as plain values."""
        return {
            "by": _NAMES[type(self.method)],
            "edge_types": [list(edge_type) for edge_type in self.edge_types],
            **vars(self.method),
            **vars(self.columns),
            "seed": self.seed,
        }

    @classmethod
    def read(cls, given: Document, schema: Schema) -> SplitArguments:
        """Read the arguments of a split of a graph; ValueError names what is wrong."""
        names = (given.given(name) for name in ("label", "time", "relation"))
        columns = LinkColumns(
            given["negatives"].whole(), *(None if name is None else name.text() for name in names)
        )
        edge_types = tuple(edge_type_of(each.type_(), schema) for each in given["edge_types"].each())
        for edge_type in edge_types:
            for name in (columns.label, columns.time, columns.relation):
                if name is not None:
                    schema.column(edge_type, name)
        if not edge_types:
            raise ValueError(f"{given['edge_types'].where}: is empty; name at least one edge type")
        return cls(edge_types, _method(given), columns, given["seed"].whole())


def _method(given: Document) -> SplitMethod:
    match given["by"].text():
        case "random":
            return Shares(_share(given["val"]), _share(given["test"]), given["disjoint_share"].real())
        case "time":
            return TimeCutOffs(time_of(given["val"]), time_of(given["test"]))
        case "column":
            return ByColumn()
        case other:
            raise ValueError(f"{given.where}.by: is {other!r}, and must be one of {list(_NAMES.values())}")


def time_of(given: Document) -> int:
    """Return a time, int64."""
    return given.whole(-_MOST_TIME - 1, _MOST_TIME)


def _share(given: Document) -> float:
    """Return a share, or a count of links as the whole number that it is."""
    return given.whole() if type(given.value) is int else given.real()


def edge_type_of(given: NodeType | EdgeType, schema: Schema) -> EdgeType:
    """Return an edge type that a request names; ValueError if the graph does not have it."""
    if isinstance(given, str):
        raise ValueError(f"{given!r}: is no edge type; there are {list(schema.edge_types)}")
    check_edge_type(given, schema)
    return given
