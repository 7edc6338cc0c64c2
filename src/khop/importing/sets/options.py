"""The declarations of the importers of standard sets. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from khop.components import ImportedLater


@dataclass(frozen=True)
class OgbOptions:
    """Options of an import of one of OGB's sets."""

    name: str
    """Name of the set, as in ogb:ogbn-arxiv"""
    root: str | None = None
    """Folder with the set as published; without it, the set is downloaded into the cache"""
    mirror: str | None = None
    """Address of a folder with the publisher's files, to download from instead of the publisher"""
    undirected: bool = False
    """Add the opposite of each edge: to the same edge type, or as rev_RELATION if there are several types"""


class Ogb:
    """One of OGB's node or link sets."""

    Options = OgbOptions
    build = ImportedLater("khop.importing.sets.ogb:ogb_importer")


@dataclass(frozen=True)
class PygOptions:
    """Options of an import of a data set of torch_geometric."""

    name: str
    """Name of the set, as in pyg:Reddit, or the folder where torch_geometric keeps it"""
    root: str | None = None
    """Folder with raw files or processed/data.pt; without it, the set is downloaded into the cache"""
    mirror: str | None = None
    """Address of a folder with the publisher's files, to download from instead of the publisher"""


class Pyg:
    """A data set of torch_geometric with one graph."""

    Options = PygOptions
    build = ImportedLater("khop.pyg.import_set:pyg_importer")


@dataclass(frozen=True)
class IgbOptions:
    """Options of an import of the Illinois Graph Benchmark."""

    name: str
    """Size, as in igb:tiny; with all node types, igb:hetero-tiny"""
    root: str | None = None
    """Folder with the set as published; without it, the set is downloaded into the cache"""
    mirror: str | None = None
    """Address of a folder with the publisher's files, to download from instead of the publisher"""
    classes: Literal["19", "2983"] = "19"
    """Number of classes of the labels"""


class Igb:
    """A size of the Illinois Graph Benchmark."""

    Options = IgbOptions
    build = ImportedLater("khop.importing.sets.igb:igb_importer")


@dataclass(frozen=True)
class DglOptions:
    """Options of an import of CSV files."""

    name: str
    """Folder with meta.yaml and its CSV files, as in dgl:FOLDER"""


class Dgl:
    """A folder of DGL's CSVDataset."""

    Options = DglOptions
    build = ImportedLater("khop.importing.sets.dgl:dgl_importer")


@dataclass(frozen=True)
class EdgeFileOptions:
    """Options of an import of a file of edges."""

    name: str
    """Edge list, or GraphML, GML, GEXF, Pajek or MatrixMarket file, also .gz, as in edges:FILE"""
    undirected: bool = False
    """Add the opposite of each edge, as edge type rev_to"""
    header: Literal["auto", "yes", "no"] = "auto"
    """First line of an edge list: yes, it names the columns; no, it is an edge; auto, found from the lines"""


class EdgeFile:
    """A file of edges."""

    Options = EdgeFileOptions
    build = ImportedLater("khop.importing.sets.edge_file:edge_file_importer")


@dataclass(frozen=True)
class MovielensOptions:
    """Options of an import of MovieLens."""

    name: str
    """Name of the set, as in movielens:ml-1m"""
    root: str | None = None
    """Folder with the set as published; without it, the set is downloaded into the cache"""
    mirror: str | None = None
    """Address of a folder with the publisher's files, to download from instead of the publisher"""


class Movielens:
    """A set of MovieLens ratings."""

    Options = MovielensOptions
    build = ImportedLater("khop.importing.sets.movielens:movielens_importer")


@dataclass(frozen=True)
class RelbenchOptions:
    """Options of an import of a RelBench database."""

    name: str
    """Name of the database, as in relbench:rel-f1"""
    root: str | None = None
    """Folder with the database as published; without it, the database is downloaded into the cache"""
    mirror: str | None = None
    """Address of a folder with a folder for each database, to download from instead of the publisher"""
    val: str | None = None
    """First day of validation, such as 2020-01-01 (default: RelBench's, of rel-f1 and rel-trial)"""
    test: str | None = None
    """First day of test, such as 2021-01-01 (default: RelBench's, of rel-f1 and rel-trial)"""


class Relbench:
    """A database of RelBench."""

    Options = RelbenchOptions
    build = ImportedLater("khop.importing.sets.relbench:relbench_importer")
