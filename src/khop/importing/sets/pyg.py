"""Import of torch_geometric's data sets: all steps of `khop import pyg:NAME`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from khop.datasets.importers import ImportContext
from khop.graph.atomic import refuse_existing
from khop.graph.progress import ProgressCallback
from khop.importing.sets.downloads import fetched, fetched_file, mirrored
from khop.importing.sets.options import PygOptions
from khop.importing.sets.pyg_processed import pyg_processed
from khop.importing.sets.pyg_raw import PYG_RAW
from khop.importing.sets.set_graph import SetGraph, memory_budget

_PROCESSED = Path("processed", "data.pt")
_LINE = (
    'python -c "from torch_geometric.datasets import {name}; from khop import graph_from_pyg; '
    "graph_from_pyg({name}('data')[0]).save('{name}')\""
)


@dataclass(frozen=True)
class PygImporter:
    """An import of a data set of torch_geometric."""

    asked: str  # name of a set, or a folder
    root: Path | None
    mirror: str | None
    context: ImportContext

    @property
    def name(self) -> str:
        """Name of the set."""
        return Path(self.asked).name

    def write(self, out: Path, notice: ProgressCallback | None = None) -> str:
        """Write the graph folder; return its counts and notes."""
        refuse_existing(out)
        graph = self._read(notice)
        return graph.write(out, memory_budget(self.context), self.context.threads, notice)

    def _read(self, notice: ProgressCallback | None) -> SetGraph:
        root = self._root(notice)
        for folder in (root, root / self.name, root / self.name.partition("-")[2]):
            for place in (folder, folder / "raw", folder / self.name.lower()):
                if self.name in PYG_RAW and (place / PYG_RAW[self.name].file).is_file():
                    return PYG_RAW[self.name].read(place, self.name)
            if (folder / _PROCESSED).is_file():
                return pyg_processed(folder / _PROCESSED, self.name)
            if any((folder / "raw").glob("ind.*")):
                raise ValueError(
                    f"{folder / 'raw'}: the raw files of Planetoid are pickles, and reading them may execute "
                    f"code; if you trust them, let torch_geometric convert them once: {_line('Planetoid')}"
                )
        raise ValueError(
            f"{root}: has neither {_PROCESSED} nor raw files of {self.name}; {_way_out(self.name)}"
        )

    def _root(self, notice: ProgressCallback | None) -> Path:
        """Return the folder with the files: as named, or of a download."""
        if self.root is not None:
            return self.root
        if (self.context.folder / self.asked).is_dir():
            return self.context.folder / self.asked
        raw = PYG_RAW.get(self.name)
        if raw is None or raw.url is None:
            raise ValueError(f"pyg:{self.asked}: {_way_out(self.name)}")
        url = mirrored(raw.url, self.mirror)
        if url.endswith(".zip"):
            return fetched(url, self.context, notice)
        return fetched_file(url, self.context, notice).parent


def pyg_importer(options: PygOptions, context: ImportContext) -> PygImporter:
    """Make the importer."""
    root = None if options.root is None else context.folder / options.root
    return PygImporter(options.name, root, options.mirror, context)


def _way_out(name: str) -> str:
    there = ", ".join(name for name, raw in PYG_RAW.items() if raw.url is not None)
    return (
        f"khop downloads {there}; for others give --root, the folder of the set with its raw files or "
        f"processed/data.pt, or let torch_geometric convert it once, which may execute code: {_line(name)}"
    )


def _line(name: str) -> str:
    return _LINE.format(name=name if name.isidentifier() else "NAME")
