"""Import of RelBench databases: all steps of `khop import relbench:NAME`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from khop.datasets.importers import ImportContext
from khop.graph.atomic import refuse_existing
from khop.graph.progress import ProgressCallback
from khop.importing.import_tables import import_tables
from khop.importing.sets.fetched import fetched
from khop.importing.sets.memory_budget import memory_budget
from khop.importing.sets.options import RelbenchOptions
from khop.importing.sets.relbench_spec import RelbenchTable, relbench_spec

_ADDRESS = "https://relbench.stanford.edu/download"
_CUT_OFFS: Mapping[str, tuple[date, date]] = {  # first days of validation and of test, as RelBench has them
    "rel-f1": (date(2005, 1, 1), date(2010, 1, 1)),
    "rel-trial": (date(2020, 1, 1), date(2021, 1, 1)),
}


@dataclass(frozen=True)
class RelbenchImporter:
    """An import of one database."""

    name: str
    root: Path | None
    mirror: str | None
    cut_offs: tuple[date, date]
    context: ImportContext

    def write(self, out: Path, notice: ProgressCallback | None = None) -> str:
        """Write the graph folder; return its counts and notes."""
        refuse_existing(out)
        folder = self._folder(notice)
        paths = sorted(folder.glob("*.parquet"), key=lambda path: path.name.encode())
        spec = relbench_spec([RelbenchTable.read(path) for path in paths], *self.cut_offs)
        done = import_tables(
            spec, out, memory=memory_budget(self.context), threads=self.context.threads, notice=notice
        )
        return done.counts()

    def _folder(self, notice: ProgressCallback | None) -> Path:
        root = self.root
        if root is None:
            # All databases have the same file name, db.zip: a mirror has a folder for each.
            root = fetched(
                f"{(self.mirror or _ADDRESS).rstrip('/')}/{self.name}/db.zip", self.context, notice
            )
        for folder in (root, root / "db", root / self.name / "db"):
            if any(folder.glob("*.parquet")):
                return folder
        raise ValueError(f"{root}: has neither *.parquet nor db/*.parquet; give the folder of {self.name}")


def relbench_importer(options: RelbenchOptions, context: ImportContext) -> RelbenchImporter:
    """Make the importer; ValueError without cut-offs."""
    val, test = _CUT_OFFS.get(options.name, (None, None))
    val = _day(options.val, "val") if options.val is not None else val
    test = _day(options.test, "test") if options.test is not None else test
    if val is None or test is None:
        raise ValueError(
            f"relbench:{options.name}: give the first days of validation and test, as --val 2020-01-01 "
            f"--test 2021-01-01; khop knows those of {', '.join(_CUT_OFFS)}"
        )
    root = None if options.root is None else context.folder / options.root
    return RelbenchImporter(options.name, root, options.mirror, (val, test), context)


def _day(text: str, name: str) -> date:
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise ValueError(f"--{name} {text}: must be a day, such as 2020-01-01") from None
