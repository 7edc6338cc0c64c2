"""List the files of khop that a batch passes from `Loader.epoch` to the model.

A small graph with two node types is loaded in one process, and by two ranks that hold its partitions. The
first epoch opens and prepares everything. In the middle of the second one, every call into a Python file of
khop is recorded on all threads: sampling, gathering, exchanging and delivering, no preparing and no training.
The values that all parts share (batch.py, draw.py and so on) are no stops and not counted.

usage: python benchmarks/walks.py [--placements all features] [--json]
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

import torch

import khop

HOME = Path(khop.__file__).parent
PROCS = 2
# The values that every part may import; they are not counted.
VALUES = ("arguments.py", "batch.py", "draw.py", "errors.py", "schema.py")


@dataclass
class Recorder:
    """The functions of khop that are called while it is on, by file, in the order of the first call."""

    functions: dict[str, dict[str, None]] = field(default_factory=dict)
    is_on: bool = False

    def __call__(self, frame: FrameType, event: str, argument: object) -> None:
        if self.is_on and event == "call" and frame.f_code.co_filename.startswith(f"{HOME}/"):
            file = str(Path(frame.f_code.co_filename).relative_to(HOME))
            if file not in VALUES:
                self.functions.setdefault(file, {}).setdefault(frame.f_code.co_qualname)

    @contextmanager
    def on_all_threads(self) -> Iterator[None]:
        """Install the recorder on this thread and on threads that start from now on."""
        threading.setprofile(self)
        sys.setprofile(self)
        try:
            yield
        finally:
            sys.setprofile(None)
            threading.setprofile(None)


def folder_of_graph(path: Path) -> Path:
    """Users and items with features, users with classes, edges both ways."""
    generator = torch.Generator().manual_seed(0)
    users, items = 400, 300
    ends = (
        torch.randint(users, (4000,), generator=generator),
        torch.randint(items, (4000,), generator=generator),
    )
    return khop.write_graph(
        path,
        {
            "user": khop.NodeTable(
                columns={
                    "x": torch.randn(users, 8, generator=generator),
                    "label": torch.randint(4, (users,), generator=generator),
                },
                splits={"train": torch.arange(users)},
            ),
            "item": khop.NodeTable(columns={"x": torch.randn(items, 8, generator=generator)}),
        },
        {
            ("user", "buys", "item"): khop.EdgeTable(*ends),
            ("item", "bought_by", "user"): khop.EdgeTable(*reversed(ends)),
        },
    )


def walk(graph: khop.Graph) -> dict[str, list[str]]:
    """The functions called for batches in the middle of an epoch, by file, in the order of the first call."""
    sampler = khop.NeighborSampler(graph, [4, 3])
    loader = khop.Loader(
        sampler, graph.split("train"), 40, shuffle=True, columns=["x"], seed_columns=["label"]
    )
    recorder = Recorder({"api/loader.py": {"Loader.epoch": None}})
    with recorder.on_all_threads():
        for _ in loader.epoch(0):
            pass
        for batch in loader.epoch(1):
            recorder.is_on = batch.step + 1 < len(loader)
    recorder.is_on = False
    return {file: list(names) for file, names in recorder.functions.items()}


def of_rank(rank: int, device: torch.device, folder: str, placement: str, out: str) -> None:
    """Write the walk of rank 0."""
    found = walk(khop.open_graph(folder, placement=placement))
    if rank == 0:
        Path(out).write_text(json.dumps(found))


def walks(placements: list[str]) -> dict[str, dict[str, list[str]]]:
    """The walk in one process, and on ranks with each placement of the partitions."""
    found: dict[str, dict[str, list[str]]] = {}
    with tempfile.TemporaryDirectory() as home:
        folder, out = folder_of_graph(Path(home, "graph")), Path(home, "walk.json")
        found["one process"] = walk(khop.open_graph(folder))
        parts = Path(home, "parts")
        khop.partition_graph(folder, parts, PROCS)
        for placement in placements:
            khop.launch(of_rank, procs=PROCS, arguments=(str(parts), placement, str(out)), device="cpu")
            found[f"{PROCS} ranks, {placement}"] = json.loads(out.read_text())
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--placements", nargs="*", default=["all", "features"])
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    given = parser.parse_args()
    found = walks(given.placements)
    if given.json:
        print(json.dumps(found))
        return
    for name, files in found.items():
        print(f"{name}: {len(files)} files")
        for number, (file, names) in enumerate(files.items(), 1):
            print(f"{number:4} {file:<40} {', '.join(names)}")


if __name__ == "__main__":
    main()
