"""Import of this or another machine's package lists as a graph folder: all steps of `khop import debian`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from khop.datasets.debian.facts import PACKAGE, Facts, collect
from khop.datasets.debian.graph import write_debian
from khop.datasets.debian.lists import find_lists, list_lines, machine_lists
from khop.datasets.debian.options import DebianOptions
from khop.datasets.debian.packages import Package, parse_packages
from khop.datasets.importers import ImportContext
from khop.graph.atomic import refuse_existing
from khop.graph.progress import Meter, ProgressCallback

_PACKAGES_PER_NOTICE = 1000


def import_debian(
    out: Path, name: str, lists: Path | None = None, notice: ProgressCallback | None = None
) -> Facts:
    """Write the graph `name` ("debian" or "debian-typed") of all package lists in a folder to `out`.

    Without `lists`, the folder is apt's own. `notice` is called while reading, then while writing. Returns
    the graph's data, so that callers can print their size.
    """
    refuse_existing(out)
    facts = read_facts(find_lists(machine_lists() if lists is None else lists), notice)
    write_debian(out, name, facts, notice)
    return facts


@dataclass(frozen=True)
class DebianImporter:
    """An import of the package lists in a folder."""

    name: str
    lists: Path | None  # None: apt's own

    def write(self, out: Path, notice: ProgressCallback | None = None) -> str:
        """Write the graph folder; return the number of packages in words."""
        facts = import_debian(out, self.name, self.lists, notice)
        return f"{facts.counts[PACKAGE]:,} packages"


def debian_importer(options: DebianOptions, context: ImportContext) -> DebianImporter:
    """Make the importer."""
    name = "debian-typed" if options.typed else "debian"
    return DebianImporter(name, None if options.lists is None else context.folder / options.lists)


def read_facts(lists: Sequence[Path], notice: ProgressCallback | None = None) -> Facts:
    """Read lists into one package graph; ValueError if they contain no package."""
    facts = collect(_packages(lists, Meter(sum(path.stat().st_size for path in lists), notice)))
    if facts.counts[PACKAGE] == 0:
        raise ValueError(
            f"{', '.join(map(str, lists))}: no package in it; run `apt-get update` and try again"
        )
    return facts


def _packages(lists: Sequence[Path], meter: Meter) -> Iterator[Package]:
    # The position in a compressed list is unknown while a pipe reads it: the bar moves list by list.
    for path in lists:
        for number, package in enumerate(parse_packages(list_lines(path), str(path))):
            if number % _PACKAGES_PER_NOTICE == 0:
                meter.at(f"{path.name}: {number:,} packages")
            yield package
        meter.at(path.name, path.stat().st_size)
