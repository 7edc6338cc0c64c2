"""The declaration of the importer of package lists. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass

from khop.components import ImportedLater


@dataclass(frozen=True)
class DebianOptions:
    """Options of an import of package lists."""

    lists: str | None = None
    """Folder with *_Packages files; without it, apt's own lists"""
    typed: bool = False
    """Import all node and edge types instead of packages and their links only"""


class Debian:
    """The packages of a Debian or Ubuntu release."""

    Options = DebianOptions
    build = ImportedLater("khop.datasets.debian.importing:debian_importer")
