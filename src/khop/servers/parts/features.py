"""Columns in parts on several servers, gathered as if every row were local."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from khop.distributed.partitioned_features import (
    RemoteRows,
    RowQuery,
    RowServer,
    check_wanted,
    columns_by_count,
)
from khop.exchange.row_wire import RowRequest, Wire, rows_of_answer, written
from khop.features.store import FeatureStoreBase, Gathered, Rows, Wanted
from khop.features.table import ColumnPieces, read_rows
from khop.partition.local_partition_features import LocalPartitionFeatures
from khop.partition.parts_folder import PartsFolder
from khop.schema import Specs, Type
from khop.servers.frame import Frame, Tensors
from khop.servers.parts.exchange import PartExchange, Query
from khop.servers.parts.graph import bytes_of
from khop.servers.parts.row_cache import Kept, RowCache
from khop.servers.parts.wire import ROWS

_NO_BYTES = torch.empty(0, dtype=torch.uint8)


@dataclass(frozen=True, eq=False)
class SharedFeatures(FeatureStoreBase):
    """A feature store over the rows of one part; other servers send the rows of the other parts.

    A gather asks each part that has some of the rows, all at once, with one request for all types and
    columns. Ids are sent ascending and unique, as differences. Threads may share the store.
    """

    pieces: Mapping[Type, ColumnPieces]  # the rows of this part
    column_specs: Specs
    offsets: Mapping[Type, Sequence[int]]  # first id of each part, and the end of the last
    exchange: PartExchange
    cache: RowCache  # of rows of other parts

    @classmethod
    def of(cls, folder: PartsFolder, exchange: PartExchange, cache_bytes: int = 0) -> SharedFeatures:
        """Return the columns of a graph, of which one part is open.

        Rows of other parts are kept in `cache_bytes` of memory.
        """
        schema, book = folder.schema, folder.book
        types: list[Type] = [*schema.node_types, *schema.edge_types]
        offsets = {t: book.offsets[t] if isinstance(t, str) else book.first_edges(t) for t in types}
        specs: Specs = {t: schema.columns.get(t, {}) for t in types}
        cache = RowCache(cache_bytes, specs, {t: ends[-1] for t, ends in offsets.items()})
        return cls(LocalPartitionFeatures(folder).pieces, specs, offsets, exchange, cache)

    @property
    def specs(self) -> Specs:
        """Dtype and shape of every column, by type."""
        return self.column_specs

    def local_rows(self, type_: Type) -> range:
        """Return the rows of this part."""
        return range(*self._span(type_, self.exchange.part))

    def answers(self) -> RowServer:
        """Return the answers to requests for rows of this part."""
        counts = {t: len(self.local_rows(t)) for t in self.specs}
        return RowServer(self.pieces, self.specs, counts, Wire.STORED)

    def gather(self, wanted: Wanted) -> Gathered:
        """Return the requested columns, one row per id in the order of the ids.

        ValueError names a type, a column or a row that does not exist.
        """
        check_wanted(wanted, self.specs, self.offsets)
        rows = [query for type_, rows in wanted.items() for query in self._rows_of(type_, rows)]
        of_parts = self._of_parts(rows)
        found: Gathered = {type_: {} for type_ in wanted}
        for number, each in enumerate(rows):
            pieces = {
                name: [*self.pieces[each.type_][name], *(of_part[number][name] for of_part in of_parts)]
                for name in each.columns
            }
            places = Rows(each.rows.places, each.columns, as_float32=wanted[each.type_].as_float32)
            found[each.type_] |= read_rows(pieces, self.specs[each.type_], each.type_, places)
        return {type_: {name: found[type_][name] for name in rows.columns} for type_, rows in wanted.items()}

    def _of_parts(self, rows: Sequence[RowQuery]) -> list[list[dict[str, Tensor]]]:
        """Return, for each part, the rows of each query that are not of this part: kept, or fetched now."""
        parts = range(len(self.exchange.others) + 1)
        kept = {part: [self._kept(part, each) for each in self._requests(part, rows)] for part in parts}
        missing = {part: [each.missing for each in of_part] for part, of_part in kept.items()}
        queries = {}
        for part in self.exchange.others:
            if any(each.ids.numel() for each in missing[part]):
                tensors = Tensors()
                queries[part] = Query({"rows": tensors(written(missing[part], self.specs))}, tensors)

        def read(part: int, frame: Frame) -> list[dict[str, Tensor]]:
            return rows_of_answer(bytes_of(frame, "rows"), missing[part], self.specs, Wire.STORED)

        _, received = self.exchange.ask(ROWS, queries, read, lambda: None)
        for part, fetched in received.items():
            for request, found in zip(missing[part], fetched, strict=True):
                self.cache.keep(request, self._span(request.type_, part)[0], found)
        nothing = [
            rows_of_answer(_NO_BYTES, _without_ids(missing[part]), self.specs, Wire.STORED) for part in parts
        ]
        return [
            [
                each.joined(rows)
                for each, rows in zip(kept[part], received.get(part, nothing[part]), strict=True)
            ]
            for part in parts
        ]

    def _kept(self, part: int, request: RowRequest) -> Kept:
        return self.cache.kept(request, self._span(request.type_, part)[0])

    def _rows_of(self, type_: Type, rows: Rows) -> list[RowQuery]:
        """Return one query per group of columns that are requested for the same number of ids."""
        span = self._span(type_, self.exchange.part)
        return [
            RowQuery.of(type_, columns, RemoteRows.of(rows.ids[:count], span), self.offsets[type_])
            for count, columns in columns_by_count(rows)
        ]

    def _requests(self, part: int, rows: Sequence[RowQuery]) -> list[RowRequest]:
        return [each.request(part, self._span(each.type_, part)[0]) for each in rows]

    def _span(self, type_: Type, part: int) -> tuple[int, int]:
        return self.offsets[type_][part], self.offsets[type_][part + 1]


def _without_ids(requests: Sequence[RowRequest]) -> list[RowRequest]:
    return [RowRequest(each.type_, each.columns, each.ids[:0]) for each in requests]
