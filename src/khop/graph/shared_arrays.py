"""Arrays of a graph that another graph shares."""

from __future__ import annotations

from collections.abc import Iterable

from khop.graph.folder import GraphFolder
from khop.graph.folder_writer import FolderWriter
from khop.graph.linked_files import link_files


def share_files(base: GraphFolder, out: FolderWriter, files: Iterable[str]) -> None:
    """Take arrays of a graph as they are into a folder under construction, with their entries."""
    names = list(files)
    link_files(base.path, out.folder, names)
    out.arrays.update({file: base.arrays[file] for file in names})
