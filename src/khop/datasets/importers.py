"""Importers: components that write graph folders from data of other programs. Loads none of them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from khop.components import Family
from khop.graph.progress import ProgressCallback

IMPORTERS = Family(
    "khop.importers",
    {
        "debian": "khop.datasets.debian.options:Debian",
        "ogb": "khop.importing.sets.options:Ogb",
        "pyg": "khop.importing.sets.options:Pyg",
        "igb": "khop.importing.sets.options:Igb",
        "dgl": "khop.importing.sets.options:Dgl",
        "movielens": "khop.importing.sets.options:Movielens",
        "relbench": "khop.importing.sets.options:Relbench",
        "edges": "khop.importing.sets.options:EdgeFile",
    },
)
NAME = "name"  # option of a kind that imports several sets: ogb:ogbn-arxiv


@dataclass(frozen=True)
class ImportContext:
    """Inputs of an importer's `build`, beside its options."""

    folder: Path  # relative paths in the options start here: the folder of the spec, or the working directory
    memory: int | None = None  # bytes for edges and columns under way; None: half of what is free
    threads: int = 1
    cache: Path | None = None  # where downloads go; None: the user's cache


class Importer(Protocol):
    """An import with all its settings."""

    @property
    def name(self) -> str:
        """Name of the graph, and of its folder if none is given."""
        ...

    def write(self, out: Path, notice: ProgressCallback | None = None) -> str:
        """Write the graph folder, complete or not at all. `notice` receives the progress.

        Returns its size in words, such as "90 items", and a line for each note, such as edges left out.
        """
        ...
