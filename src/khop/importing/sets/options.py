"""The declarations of the importers of standard sets. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass

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
