"""The work of `khop partition` and `khop part-files`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import typer

from khop.api.partition import partition_graph
from khop.cli.bytes_bar import bytes_bar
from khop.cli.next_steps import say_next, tell_next
from khop.cli.parts_table import print_parts
from khop.cli.terminal import table_console
from khop.distributed.placement import machine_files
from khop.partition.describe import describe_parts
from khop.partition.placements import Placement


@dataclass(frozen=True)
class Settings:
    """Options of the command."""

    method: str
    balance: Sequence[str] | None
    slack: float
    seed: int
    fanouts: Sequence[int]
    batch_size: int
    method_options: Mapping[str, object]
    threads: int


def write_parts(source: Path, out: Path, parts: int, settings: Settings, as_json: bool) -> None:
    """Partition the graph and print the parts."""
    with bytes_bar() as notice:
        book = partition_graph(source, out, parts, **vars(settings), notice=notice)
    if as_json:
        typer.echo(json.dumps({"path": str(out), "method": book.method, **asdict(book.quality)}))
        return
    console = table_console()
    fanouts = ",".join(map(str, settings.fanouts))
    print_parts(console, describe_parts(out), f", at fanouts {fanouts} and batch {settings.batch_size:,}")
    say_next(console, ("khop", "info", str(out)))


def print_part_files(graph: Path, placement: Placement, machine: int, machines: int, procs: int) -> None:
    """Print the files that one machine needs, one per line."""
    typer.echo("\n".join(machine_files(graph, placement, machine, machines, procs)))
    part_files = ("khop", "part-files", str(graph), "--machine", str(machine), "--machines", str(machines))
    tell_next((*part_files, ">", "files.txt"), ("rsync", "--files-from=files.txt", str(graph), "HOST:FOLDER"))
