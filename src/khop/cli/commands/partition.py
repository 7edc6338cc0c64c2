"""`khop partition` and `khop part-files`: a graph cut into parts, a folder for each machine."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from khop.cli.graph_argument import AsJson, GraphArgument, folder_of
from khop.cli.numbers import fanout_list
from khop.distributed.placements import Placement
from khop.partition.method_names import METHOD_NAMES

Method = StrEnum("Method", list(METHOD_NAMES))  # type: ignore[misc]  # a method is listed in one place


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command()(partition)
    app.command()(part_files)


def partition(
    graph: GraphArgument,
    out: Annotated[Path, typer.Argument(help="The folder of parts to write.", show_default=False)],
    parts: Annotated[int, typer.Option(help="How many: one for each machine.", show_default=False)],
    method: Annotated[
        Method,
        typer.Option(
            help="ldg and fennel stream over the edges, in memory that grows with the nodes alone; metis "
            "cuts less, with all edges in memory, and needs khop\\[metis]; random, range and hash see no "
            "edges."
        ),
    ] = Method("ldg"),  # noqa: B008  # a value of an enumeration
    balance: Annotated[
        str,
        typer.Option(
            help="Of what no part may have more than its share: nodes, edges, bytes, names of splits, with "
            "commas between them; default: nodes, and train where there is that split.",
            metavar="NAMES",
            show_default=False,
        ),
    ] = "",
    slack: Annotated[float, typer.Option(help="By how much of its share a part may exceed it.")] = 0.05,
    seed: Annotated[int, typer.Option(help="Of random, hash and metis.")] = 0,
    threads: Annotated[int, typer.Option(help="Any number gives the same parts; 0: one per core.")] = 0,
    fanouts: Annotated[
        str,
        typer.Option(
            help="As 15,10,5: say what share of a batch's nodes will be remote.",
            metavar="NUMBERS",
            show_default=False,
        ),
    ] = "",
    batch_size: Annotated[int, typer.Option(help="Seeds of all machines together, for --fanouts.")] = 1024,
    as_json: AsJson = False,
) -> None:
    """Cut a graph into parts: graph folders of the nodes each owns, with their in-edges and columns."""
    hops = fanout_list(fanouts) if fanouts else []
    source = folder_of(graph)
    from khop.cli import partition as work

    settings = work.Settings(
        method.value,
        [name.strip() for name in balance.split(",")] if balance else None,
        slack,
        seed,
        hops,
        batch_size,
        threads,
    )
    work.partition(source, out, parts, settings, as_json)


def part_files(
    graph: Annotated[Path, typer.Argument(help="A folder of parts.", show_default=False)],
    machine: Annotated[int, typer.Option(help="Which, from 0: torchrun's --node-rank.", show_default=False)],
    machines: Annotated[int, typer.Option(help="How many there are.", show_default=False)],
    procs: Annotated[int, typer.Option(help="Processes on each of them.")] = 1,
    placement: Annotated[Placement, typer.Option(help="As of khop train.")] = Placement.FEATURES,
) -> None:
    """List the files of a folder of parts that one machine needs, for rsync --files-from=- and the like."""
    from khop.cli.partition import print_part_files

    print_part_files(graph, placement, machine, machines, procs)
