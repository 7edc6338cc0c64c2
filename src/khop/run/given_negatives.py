"""Negatives of held-out links from files: lists per link, or pairs that all links are compared with."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from khop.data.tables.packages import numpy_of, pa, without_spec
from khop.data.tables.rows import TableRows
from khop.data.tables.source import OpenSource, SourceFolder
from khop.data.tables.spec import Source
from khop.graph.folder import Folder, import_record
from khop.run.parts import words_of
from khop.run.seed_tables import Lookup, node_lookup, pieces_of
from khop.sampling.links.link_seeds import PADDING, LinkList, Links
from khop.schema import EdgeType

NEGATIVES, SOURCES = "negatives", "negative_sources"  # columns of lists: destinations, and sources
_Nodes = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class NegativeFile:
    """A file of negatives, opened and checked."""

    source: OpenSource
    columns: tuple[str, str]  # of the ids of sources and destinations
    edge_type: EdgeType
    folder: Folder

    @classmethod
    @without_spec()
    def open(cls, path: str, key: str, edge_type: EdgeType, folder: Folder) -> NegativeFile:
        """Open a file by its path. ValueError if it lacks a column of ids."""
        record = import_record(folder).get("edges", {}).get(words_of(edge_type), {})
        columns = (record.get("source", "source"), record.get("destination", "destination"))
        source = OpenSource.open(Source(files=(path,)), key, SourceFolder(Path(), {})).with_ids(columns)
        source.check(dict.fromkeys(columns, key))
        return cls(source, columns, edge_type, folder)

    @property
    def has_lists(self) -> bool:
        """True if the file has lists of negatives per link; else its rows are pairs for all links."""
        return not {NEGATIVES, SOURCES}.isdisjoint(self.source.table.schema.names)

    def joined_to(self, links: LinkList) -> Links:
        """Return the links with negatives, or the links (label 1) followed by the pairs (label 0).

        Collective if links are partitioned over ranks. Raises ValueError for a link without a row, and for
        pairs if links have times.
        """
        every = links.rows(self.edge_type, torch.arange(links.counts[self.edge_type]))
        facts = {"times": every.times, "relations": every.relations}
        given = {name: {self.edge_type: of} for name, of in facts.items() if of is not None}
        if self.has_lists:
            negatives = torch.from_numpy(self._lists(every.edges.numpy(), NEGATIVES))
            return Links({self.edge_type: every.edges}, negatives={self.edge_type: negatives}, **given)
        if given:
            raise ValueError(
                f"{self.source.key}: the links have {', '.join(given)}, and pairs for all links do not; give "
                f"a list of negatives per link, in a column {NEGATIVES!r}"
            )
        pairs = torch.from_numpy(np.stack(self._pairs()))
        labels = torch.cat([torch.ones(every.edges.shape[1]), torch.zeros(pairs.shape[1])])
        return Links({self.edge_type: torch.cat([every.edges, pairs], 1)}, labels={self.edge_type: labels})

    def sources_of(self, links: Links) -> Tensor | None:
        """Return int64 (links, k): negatives that replace the source, padded with -1; None without any."""
        if SOURCES not in self.source.table.schema.names:
            return None
        return torch.from_numpy(self._lists(links.edges[self.edge_type].numpy(), SOURCES))

    @without_spec()
    def _pairs(self) -> tuple[_Nodes, _Nodes]:
        """Return sources and destinations of all rows."""
        ends: tuple[list[_Nodes], list[_Nodes]] = ([], [])
        lookups = self._lookups()
        for rows in pieces_of(self.source, [*self.columns]):
            for found, column, lookup in zip(ends, self.columns, lookups, strict=True):
                found.append(lookup(rows.column(column), rows.row))
        return np.concatenate(ends[0]), np.concatenate(ends[1])

    @without_spec()
    def _lists(self, links: _Nodes, column: str) -> _Nodes:
        """Return (links, k): the negatives of each link in a column, padded with -1."""
        if column not in self.source.table.schema.names:
            return np.empty((links.shape[1], 0), np.int64)
        lookup = self._lookups()[column == NEGATIVES]
        nodes, sizes = [], []
        for rows in pieces_of(self.source, [column]):
            lists = rows.column(column)
            if not (
                pa.types.is_list(lists.type)
                or pa.types.is_large_list(lists.type)
                or pa.types.is_fixed_size_list(lists.type)
            ):
                raise ValueError(f"{rows.row(0)}: {column} is {lists.type}; give lists of ids")
            sizes.append(numpy_of(pa.compute.list_value_length(lists).fill_null(0)).astype(np.int64))
            place = partial(_place_of, numpy_of(pa.compute.list_parent_indices(lists)), rows)
            nodes.append(lookup(lists.flatten(), place))
        return self._padded(self._rows_of(links), np.concatenate(nodes), np.concatenate(sizes))

    def _rows_of(self, links: _Nodes) -> _Nodes:
        """Return the row of each link. Duplicate links get their rows in the order of the file."""
        given = np.stack(self._pairs())
        count = self.folder.num_nodes(self.edge_type[2])
        keys = [ends[0] * count + ends[1] for ends in (given, links)]
        _, codes = np.unique(np.concatenate(keys), return_inverse=True)
        numbered = [_numbered(part) for part in np.split(codes, [given.shape[1]])]
        most = int(max((part.max(initial=0) for part in numbered), default=0)) + 1
        rows, wanted = (
            part * most + number
            for part, number in zip(np.split(codes, [given.shape[1]]), numbered, strict=True)
        )
        order = rows.argsort()
        places = np.searchsorted(rows[order], wanted).clip(max=max(0, len(rows) - 1))
        found = order[places] if len(rows) else np.zeros(len(wanted), np.int64)
        missing = np.flatnonzero(rows[found] != wanted) if len(rows) else np.arange(len(wanted))
        if len(missing):
            source, destination = links[:, missing[0]].tolist()
            raise ValueError(
                f"{self.source.key}: {self.source.table.name} has no row for {len(missing):,} of "
                f"{links.shape[1]:,} links, such as from node {source} to node {destination}; give each link "
                "its negatives"
            )
        return found

    def _padded(self, rows: _Nodes, nodes: _Nodes, sizes: _Nodes) -> _Nodes:
        starts = np.concatenate([[0], sizes.cumsum()])[:-1]
        width = int(sizes[rows].max(initial=0))
        places = np.arange(width)
        found = np.full((len(rows), width), PADDING, np.int64)
        is_given = places < sizes[rows][:, None]
        found[is_given] = nodes[(starts[rows][:, None] + places)[is_given]]
        return found

    def _lookups(self) -> tuple[Lookup, Lookup]:
        (source, _, destination), (first, second), key = self.edge_type, self.columns, self.source.key
        of_sources = node_lookup(self.folder, source, f"{key}: {first}")
        return of_sources, node_lookup(self.folder, destination, f"{key}: {second}")


def _place_of(rows_of_entries: _Nodes, rows: TableRows, entry: int) -> str:
    """Return a description of the position of a list entry."""
    return rows.row(int(rows_of_entries[entry]))


def _numbered(codes: _Nodes) -> _Nodes:
    """Return for each code the number of equal codes before it."""
    order = codes.argsort(kind="stable")
    ordered = codes[order]
    found = np.empty_like(codes)
    found[order] = np.arange(len(codes)) - np.searchsorted(ordered, ordered)
    return found
