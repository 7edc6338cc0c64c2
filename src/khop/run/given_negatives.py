"""Negatives of held-out links from files: lists per link, or pairs that all links are compared with."""

from __future__ import annotations

from collections.abc import Mapping
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
from khop.graph.folder import Folder
from khop.graph.node_ids import recorded_columns
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
        columns = recorded_columns(folder, edge_type) or ("source", "destination")
        source = OpenSource.open(Source(files=(path,)), key, SourceFolder(Path(), {})).with_ids(columns)
        source.check(dict.fromkeys(columns, key))
        return cls(source, columns, edge_type, folder)

    @property
    def has_lists(self) -> bool:
        """True if the file has lists of negatives per link; else its rows are pairs for all links."""
        return not {NEGATIVES, SOURCES}.isdisjoint(self.source.table.schema.names)

    def joined_to(self, links: LinkList) -> tuple[Links, Tensor | None]:
        """Return the links with negatives, or the links (label 1) followed by the pairs (label 0).

        Also returns int64 (links, k), negatives that replace the source, padded with -1; None without any.
        Links of an undirected edge type have the direction of their rows. Collective if links are
        partitioned over ranks. Raises ValueError for a link without a row or without a negative, and for
        pairs if links have times.
        """
        every = links.rows(self.edge_type, torch.arange(links.counts[self.edge_type]))
        facts = {"times": every.times, "relations": every.relations}
        given = {name: {self.edge_type: of} for name, of in facts.items() if of is not None}
        if self.has_lists:
            return self._with_lists(every.edges.numpy(), given)
        if given:
            raise ValueError(
                f"{self.source.key}: the links have {', '.join(given)}, and pairs for all links do not; give "
                f"a list of negatives per link, in a column {NEGATIVES!r}"
            )
        pairs = torch.from_numpy(np.stack(self._pairs()))
        labels = torch.cat([torch.ones(every.edges.shape[1]), torch.zeros(pairs.shape[1])])
        edges = torch.cat([every.edges, pairs], 1)
        return Links({self.edge_type: edges}, labels={self.edge_type: labels}), None

    def _with_lists(
        self, links: _Nodes, facts: Mapping[str, Mapping[EdgeType, Tensor]]
    ) -> tuple[Links, Tensor | None]:
        pairs = np.stack(self._pairs())
        rows = self._rows_of(links, pairs)
        ends, lists = pairs[:, rows], [self._list(name, rows) for name in (NEGATIVES, SOURCES)]
        alone = np.flatnonzero(~np.concatenate([of != PADDING for of in lists], axis=1).any(1))
        if len(alone):
            source, destination = ends[:, alone[0]].tolist()
            raise ValueError(
                f"{self.source.key}: the link from node {source} to node {destination} has no negative, and "
                f"so for {len(alone):,} of {len(rows):,} links; give each link one or more"
            )
        negatives, sources = map(torch.from_numpy, lists)
        edges = {self.edge_type: torch.from_numpy(ends)}
        found = Links(edges, negatives={self.edge_type: negatives}, **facts)
        return found, sources if SOURCES in self.source.table.schema.names else None

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
    def _list(self, column: str, links: _Nodes) -> _Nodes:
        """Return (links, k): the negatives in a column of some rows, padded with -1."""
        if column not in self.source.table.schema.names:
            return np.empty((len(links), 0), np.int64)
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
        return self._padded(links, np.concatenate(nodes), np.concatenate(sizes))

    def _rows_of(self, links: _Nodes, given: _Nodes) -> _Nodes:
        """Return the row of each link; in an undirected edge type, also a row in the other direction."""
        count = self.folder.num_nodes(self.edge_type[2])
        found = _matched(links, given, count)
        if self.folder.schema.reverse(self.edge_type) == self.edge_type:
            # From the last row, because links in the other direction use the first rows.
            rows = np.append(np.arange(given.shape[1])[::-1], -1)
            turned = rows[_matched(links[::-1, ::-1], given[:, ::-1], count)][::-1]
            found = np.where(found < 0, turned, found)
        missing = np.flatnonzero(found < 0)
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


def _matched(links: _Nodes, given: _Nodes, num_destinations: int) -> _Nodes:
    """Return the row of each link, -1 without one. Duplicates get their rows in the order of the file."""
    keys = [sources * num_destinations + destinations for sources, destinations in (given, links)]
    _, codes = np.unique(np.concatenate(keys), return_inverse=True)
    of_given, of_links = np.split(codes, [given.shape[1]])
    numbers = [_numbered(part) for part in (of_given, of_links)]
    most = int(max(part.max(initial=0) for part in numbers)) + 1
    rows, wanted = of_given * most + numbers[0], of_links * most + numbers[1]
    if not len(rows):
        return np.full(len(wanted), -1)
    order = rows.argsort()
    found = order[np.searchsorted(rows[order], wanted).clip(max=len(rows) - 1)]
    return np.where(rows[found] == wanted, found, -1)


def _numbered(codes: _Nodes) -> _Nodes:
    """Return for each code the number of equal codes before it."""
    order = codes.argsort(kind="stable")
    ordered = codes[order]
    found = np.empty_like(codes)
    found[order] = np.arange(len(codes)) - np.searchsorted(ordered, ordered)
    return found
