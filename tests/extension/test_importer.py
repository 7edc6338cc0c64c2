"""An importer written outside khop: from Python, by its kind, and from a spec."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

import khop
from cli.conftest import Ran
from khop.data.importers import ImportContext
from khop.graph.atomic import ProgressCallback

Command = Callable[..., Ran]
KIND = f"{__name__}:Trips"
LINES = "paris lyon 2\nlyon nice 3\nnice paris 4\nlyon paris 2\n"


@dataclass(frozen=True)
class Trips:
    """A text file with two towns and a number per line, as a graph of towns."""

    @dataclass(frozen=True)
    class Options:
        """Options of `khop import`, and keys of a spec."""

        file: str
        """Text file to read"""
        name: str = "trips"
        """Name of the graph"""
        classes: int = 2
        """Number of classes; a town's class follows from its place in the alphabet"""

    file: Path
    name: str
    classes: int

    @classmethod
    def build(cls, options: Options, context: ImportContext) -> Trips:
        return cls(context.folder / options.file, options.name, options.classes)

    def write(self, out: Path, notice: ProgressCallback | None = None) -> str:
        rows = [line.split() for line in self.file.read_text().splitlines()]
        towns = sorted({town for row in rows for town in row[:2]})
        ends = torch.tensor([[towns.index(row[side]) for row in rows] for side in (0, 1)])
        hours = torch.tensor([float(row[2]) for row in rows])
        ids = torch.arange(len(towns))
        nodes = khop.NodeTable(
            columns={"x": torch.eye(len(towns)), "class": ids % self.classes},
            splits={"train": ids[:1], "val": ids[1:2], "test": ids[2:]},
            num_classes={"class": self.classes},
        )
        edges = khop.EdgeTable(*ends, columns={"hours": hours})
        khop.write_graph(out, {"town": nodes}, {("town", "to", "town"): edges}, notice=notice)
        return f"{len(towns)} towns"


@pytest.fixture
def trips(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "trips.txt").write_text(LINES)
    return tmp_path / "data" / "trips.txt"


def test_from_python(trips: Path) -> None:
    importer = Trips.build(Trips.Options("trips.txt"), ImportContext(trips.parent))
    assert importer.write(Path("out")) == "3 towns"
    graph = khop.open_graph("out")
    assert (graph.num_nodes("town"), graph.num_edges(("town", "to", "town"))) == (3, 4)


def test_by_its_kind(khop_command: Command, trips: Path) -> None:
    shown = khop_command("import", KIND, "--help").stdout
    assert "--file" in shown
    assert "Text file to read." in shown
    assert "--typed" not in shown
    missing = khop_command("import", KIND)
    assert missing.code == 2
    assert "file is missing: give --file" in missing.stderr.replace("\n", " ")
    ran = khop_command("import", KIND, "--file", str(trips), "--classes", "3")
    assert ran.code == 0, ran.stderr
    assert ran.stdout == "graphs/trips: 3 towns. Show it: khop info graphs/trips\n"
    assert khop.open_graph("graphs/trips").schema.column("town", "class").num_classes == 3


def test_from_a_spec_whose_paths_are_relative_to_it(khop_command: Command, trips: Path) -> None:
    (trips.parent / "spec.toml").write_text(f'kind = "{KIND}"\nfile = "trips.txt"\n')
    ran = khop_command("import", "data/spec.toml", "out", "--classes", "3")
    assert ran.code == 0, ran.stderr
    assert khop.open_graph("out").schema.column("town", "class").num_classes == 3
    trained = ("train", "--graph", "out", "--fanouts", "2", "--epochs", "1", "--hidden", "4")
    assert khop_command(*trained).code == 0
    (trips.parent / "spec.toml").write_text(f'kind = "{KIND}"\nfile = "trips.txt"\nclasses = "many"\n')
    wrong = khop_command("import", "data/spec.toml", "other")
    assert "classes is 'many': must be a whole number (data/spec.toml)" in wrong.stderr.replace("\n", " ")
    assert not Path("other").exists()
