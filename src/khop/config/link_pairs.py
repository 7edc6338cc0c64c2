"""Pairs of ids to score: a table with the columns of ids that the table of an edge type had."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from khop.config.joined_run import JoinedRun
from khop.config.parts import words_of
from khop.graph.import_record import import_record
from khop.graph.node_ids import OwnIds, ids_in
from khop.importing.id_column import id_kind, keys_of
from khop.importing.rows import Rows, no_rows
from khop.importing.source import OpenSource, SourceFolder
from khop.importing.spec import Source
from khop.kernels.id_table import Keys, StringKeys
from khop.schema import EdgeType, NodeType

_KEY = "pairs"  # in errors


@dataclass(frozen=True, eq=False)
class PairRows:
    """Consecutive pairs of a table."""

    ids: tuple[Any, Any]  # pyarrow arrays (n): the ids of sources and destinations
    nodes: tuple[Tensor, Tensor]  # int64 (n): nodes of the joined graph, -1 where no node has the id


@dataclass(frozen=True, eq=False)
class Pairs:
    """A table of pairs, opened and checked."""

    source: OpenSource
    columns: tuple[str, str]
    ids: tuple[_Ids, _Ids]

    @classmethod
    def open(cls, table: Any, edge_type: EdgeType, joined: JoinedRun) -> Pairs:  # noqa: ANN401
        """Open a file, or a table of pandas, polars or Arrow. ValueError if it lacks a column of ids."""
        columns = _columns(edge_type, joined)
        is_file = isinstance(table, str | os.PathLike)
        spec = Source(files=(os.fspath(table),)) if is_file else Source(rows=table)
        source = OpenSource.open(spec, _KEY, SourceFolder(Path(), {}))
        source.check(dict.fromkeys(columns, _KEY))
        for column in columns:
            dtype = source.table.schema.field(column).type
            if str(dtype) != "null":  # of an empty table of pandas
                id_kind([(f"{_KEY}: {column}", dtype, source.is_untyped)], None, edge_type[0])
        return cls(source, columns, (_Ids.of(edge_type[0], joined), _Ids.of(edge_type[2], joined)))

    def __iter__(self) -> Iterator[PairRows]:
        for rows in self._rows():
            arrays = rows.column(self.columns[0]), rows.column(self.columns[1])
            nodes = [
                ids.nodes(keys_of(array, ids.kind, f"{_KEY}: {column}", rows.row))
                for ids, array, column in zip(self.ids, arrays, self.columns, strict=True)
            ]
            yield PairRows(arrays, (nodes[0], nodes[1]))

    def _rows(self) -> Iterator[Rows]:
        """Yield the rows of the table, at least one piece: it has the types of the columns."""
        is_empty = True
        for piece in self.source.pieces(self.columns):
            is_empty = False
            yield piece()
        if is_empty:
            yield no_rows(self.source.table, self.columns)


@dataclass(frozen=True, eq=False)
class _Ids:
    """Ids of the nodes of a type in the joined graph."""

    base: OwnIds
    later: OwnIds | None
    places: Tensor | None  # int64 (later nodes): the node of the joined graph

    @classmethod
    def of(cls, node_type: NodeType, joined: JoinedRun) -> _Ids:
        base, later = joined.base, joined.later
        own = ids_in(base.path, base.arrays, node_type, base.num_nodes(node_type))
        if later is None or node_type not in later.schema.node_types:
            return cls(own, None, None)
        of_later = ids_in(later.path, later.arrays, node_type, later.num_nodes(node_type))
        return cls(own, of_later, joined.joined.places[node_type])

    @property
    def kind(self) -> Any:  # noqa: ANN401
        return "string" if isinstance(self.base.stored, StringKeys) else "int64"

    def nodes(self, keys: Keys) -> Tensor:
        """Return the node of each id; -1 where there is none."""
        found = torch.from_numpy(self.base.index.find(self.base.stored, keys))
        if self.later is None or self.places is None:
            return found
        at = torch.from_numpy(self.later.index.find(self.later.stored, keys))
        is_later = (found < 0) & (at >= 0)
        found[is_later] = self.places[at[is_later]]
        return found


def _columns(edge_type: EdgeType, joined: JoinedRun) -> tuple[str, str]:
    """Return the recorded columns of ids of an edge type, or of its reverse, turned around."""
    record = import_record(joined.base).get("edges", {})
    reverse = joined.run.graph.schema.reverse(edge_type)
    if words_of(edge_type) in record:
        own = record[words_of(edge_type)]
        return own["source"], own["destination"]
    if reverse is not None and words_of(reverse) in record:
        turned = record[words_of(reverse)]
        return turned["destination"], turned["source"]
    raise ValueError(
        f"{joined.base.path}: has no recorded table of {words_of(edge_type)!r}, whose columns of ids "
        "pairs have; import the graph from tables"
    )
