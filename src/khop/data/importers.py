"""Registry of importers, and their declarations for `khop import`.

An importer is a component that writes a graph folder from data of another program. This module does not
import implementations or torch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Literal, Protocol

from khop.components import Family, ImportedLater
from khop.graph.atomic import ProgressCallback, refuse_existing

IMPORTERS = Family(
    "khop.importers",
    {
        "ogb": "khop.data.importers:Ogb",
        "pyg": "khop.data.importers:Pyg",
        "igb": "khop.data.importers:Igb",
        "dgl": "khop.data.importers:Dgl",
        "movielens": "khop.data.importers:Movielens",
        "relbench": "khop.data.importers:Relbench",
        "edges": "khop.data.importers:EdgeFile",
    },
)
NAME = "name"  # option of a kind that imports several sets: ogb:ogbn-arxiv


@dataclass(frozen=True)
class ImportContext:
    """Inputs of an importer's `build` other than its options."""

    folder: Path  # relative paths in the options start here: the folder of the spec, or the working directory
    memory: int | None = None  # bytes for edges and columns in memory; None: half of the free memory
    threads: int = 1
    cache: Path | None = None  # folder of downloads; None: the user's cache
    further: list[Path] = field(default_factory=list)  # folders that an import writes in addition to OUT


class Importer(Protocol):
    """An import with all its settings."""

    @property
    def name(self) -> str:
        """Name of the graph, and of its folder if none is given."""
        ...

    def write(self, out: Path, notice: ProgressCallback | None = None) -> str:
        """Write the graph folder atomically. `notice` receives the progress.

        Further folders are added to the context's `further`, so that `khop import` uploads them too.
        Returns a text with its size, such as "90 items", and a line for each note, such as omitted edges.
        """
        ...


@dataclass(frozen=True)
class NamedImport:
    """An importer that calls a function with the folder and `notice`."""

    name: str
    run: Callable[[Path, ProgressCallback | None], str]

    def write(self, out: Path, notice: ProgressCallback | None = None) -> str:
        """Write the graph folder; return its counts and notes. ValueError if it exists."""
        refuse_existing(out)
        return self.run(out, notice)


BUILTIN_NAMES = ("debian", "debian-typed")
SNAPSHOT_SHA256 = "0e66b2ccb1df183381ca4f6ac3a291b958917d57f44fc5904a9a4c405d74da38"
_RECIPE = 1  # increase it when a snapshot changes the graph, so that old folders in caches are not used


def builtin_path(name: str, cache: Path) -> Path:
    """Return the folder of a built-in graph in `cache`, unpacked or not."""
    return cache / f"{name}-{SNAPSHOT_SHA256[:8]}.{_RECIPE}"


def graph_name(folder: Path) -> str:
    """Return the name of a folder's graph: the folder's name, or that of the built-in graph in a cache."""
    return next((name for name in BUILTIN_NAMES if folder == builtin_path(name, folder.parent)), folder.name)


@dataclass(frozen=True)
class PublishedSet:
    """Options of all imports of published datasets."""

    name: str
    """Name of the set"""
    root: str | None = None
    """Folder with the set as published; without it, the set is downloaded into the cache"""
    mirror: str | None = None
    """Address of a folder with the publisher's files, to download from instead of the publisher"""


@dataclass(frozen=True)
class Ogb(PublishedSet):
    """A node or link dataset of OGB."""

    build: ClassVar = ImportedLater("khop.data.formats.ogb:ogb_importer")
    name: str
    """Name of the set, as in ogb:ogbn-arxiv"""
    undirected: bool = False
    """Add the opposite of each edge: to the same edge type, or as rev_RELATION if there are several types"""


@dataclass(frozen=True)
class Pyg(PublishedSet):
    """A data set of torch_geometric with one graph."""

    build: ClassVar = ImportedLater("khop.pyg.import_set:PygImporter")
    name: str
    """Name of the set, as in pyg:Reddit, or the folder where torch_geometric keeps it"""
    root: str | None = None
    """Folder with raw files or processed/data.pt; without it, the set is downloaded into the cache"""


@dataclass(frozen=True)
class Igb(PublishedSet):
    """A size of the Illinois Graph Benchmark."""

    build: ClassVar = ImportedLater("khop.data.formats.igb:igb_importer")
    name: str
    """Size, as in igb:tiny; with all node types, igb:hetero-tiny"""
    classes: Literal["19", "2983"] = "19"
    """Number of classes of the labels"""
    dtype: Literal["float32", "float16"] = "float32"
    """Type of the features: as published (float32), or half the bytes (float16)"""
    cites: Literal["typed", "mlperf"] = "typed"
    """Edges between papers: citations and their reverses as two edge types (typed), or as one edge type with
    a self loop per paper and direction, as MLPerf's benchmark reads them (mlperf)"""


@dataclass(frozen=True)
class Dgl:
    """A folder of DGL's CSVDataset."""

    build: ClassVar = ImportedLater("khop.data.formats.dgl:dgl_importer")
    name: str
    """Folder with meta.yaml and its CSV files, as in dgl:FOLDER"""


@dataclass(frozen=True)
class EdgeFile:
    """A file of edges."""

    build: ClassVar = ImportedLater("khop.data.formats.edge_file:edge_file_importer")
    name: str
    """Edge list, or GraphML, GML, GEXF, Pajek or MatrixMarket file, also .gz, as in edges:FILE"""
    undirected: bool = False
    """Add the opposite of each edge, as edge type rev_to"""
    header: Literal["auto", "yes", "no"] = "auto"
    """First line of an edge list: yes, it names the columns; no, it is an edge; auto, found from the lines"""


@dataclass(frozen=True)
class Movielens(PublishedSet):
    """A set of MovieLens ratings."""

    build: ClassVar = ImportedLater("khop.data.formats.movielens:movielens_importer")
    name: str
    """Name of the set, as in movielens:ml-1m"""


@dataclass(frozen=True)
class Relbench(PublishedSet):
    """A database of RelBench."""

    build: ClassVar = ImportedLater("khop.data.formats.relbench:relbench_importer")
    name: str
    """Name of the database, as in relbench:rel-f1"""
    mirror: str | None = None
    """Address of a folder with a folder for each database, to download from instead of the publisher"""
    val: str | None = None
    """First day of validation, such as 2020-01-01 (default: RelBench's, of rel-f1 and rel-trial)"""
    test: str | None = None
    """First day of test, such as 2021-01-01 (default: RelBench's, of rel-f1 and rel-trial)"""
    task: str | None = None
    """Task of the database, such as driver-dnf; a run file and the labels of a node task are written to the
    folder OUT-TASK, and the links of a recommendation task become edges with times"""
