"""Files of one graph folder that are also files of another: hard links where the file system has them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from pathlib import Path

from khop.graph import layout
from khop.graph.manifest import read_manifest


def link_files(source: Path, target: Path, files: Iterable[str]) -> None:
    """Put files of a folder into another one. They share their bytes on disk, or are copied.

    Files of graph folders are never changed in place, so a shared file stays as it is in both.
    """
    for file in files:
        there = target / file
        there.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(source / file, there)
        except OSError:  # another file system, or one without links
            shutil.copyfile(source / file, there)
            with there.open("rb") as copied:
                os.fsync(copied.fileno())


def link_graph(source: Path, target: Path) -> None:
    """Make a folder with the files of a graph: graph.json, arrays and documents; nothing derived."""
    manifest, _ = read_manifest(source)
    link_files(source, target, [*manifest.arrays, *manifest.documents, layout.MANIFEST])
