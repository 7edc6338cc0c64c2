"""Import of OGB's node and link sets: all steps of `khop import ogb:NAME`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from khop.datasets.importers import ImportContext
from khop.graph.atomic import refuse_existing
from khop.graph.progress import ProgressCallback
from khop.importing.read_spec import nearest
from khop.importing.sets.fetched import fetched
from khop.importing.sets.memory_budget import memory_budget
from khop.importing.sets.mirrored import mirrored
from khop.importing.sets.ogb_links import ogb_links
from khop.importing.sets.ogb_nodes import ogb_nodes
from khop.importing.sets.ogb_raw import Directions
from khop.importing.sets.ogb_sets import OGB_SETS, OgbSet
from khop.importing.sets.options import OgbOptions
from khop.importing.sets.scratch import Scratch
from khop.importing.sets.set_folder import set_folder
from khop.importing.sets.set_graph import SetGraph


@dataclass(frozen=True)
class OgbImporter:
    """An import of one of OGB's sets."""

    ogb: OgbSet
    root: Path | None  # None: download
    url: str
    directions: Directions
    context: ImportContext

    @property
    def name(self) -> str:
        """Name of the set."""
        return self.ogb.name

    def write(self, out: Path, notice: ProgressCallback | None = None) -> str:
        """Write the graph folder; return its counts and notes."""
        refuse_existing(out)
        root = fetched(self.url, self.context, notice) if self.root is None else self.root
        folder = set_folder(root, self.ogb.folders, "raw", self.url)
        memory = memory_budget(self.context)
        with Scratch.beside(out, memory // 4) as scratch:
            read = ogb_links if self.ogb.has_links else ogb_nodes
            graph: SetGraph = read(self.ogb, folder, self.directions, scratch)
            return graph.write(out, memory, self.context.threads, notice)


def ogb_importer(options: OgbOptions, context: ImportContext) -> OgbImporter:
    """Make the importer; ValueError for a set that OGB does not have."""
    if options.name not in OGB_SETS:
        raise ValueError(
            f"ogb:{options.name}: no such node or link set; {nearest(options.name, list(OGB_SETS))}"
        )
    root = None if options.root is None else context.folder / options.root
    directions: Directions = "both directions" if options.undirected else "as stored"
    ogb = OGB_SETS[options.name]
    return OgbImporter(ogb, root, mirrored(ogb.url, options.mirror), directions, context)
