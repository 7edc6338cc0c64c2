"""`khop partition` and `khop part-files`: partition a graph and list the files of each machine."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from khop.cli.arguments import CommandWords, GraphArgument, Report, folder_of
from khop.cli.lines import fanout_list
from khop.cli.options import ComponentCommand, takes_groups, values_of_components
from khop.components import ANY_NAMED, Component, Permission
from khop.data.partition.methods import PARTITIONERS
from khop.graph.partitions.placements import Placement
from khop.run.fields import RunField
from khop.run.read import COMMAND_LINE, RawRun


class PartitionCommand(ComponentCommand):
    """`khop partition`, with the options of the method that it names."""

    def component_fields(self, words: CommandWords, permission: Permission) -> Iterable[RunField]:
        """Return the fields of the method's options."""
        kinds = words.values("--method")
        if not kinds or kinds[-1] in PARTITIONERS.builtin:
            return ()
        from khop.run.check import component_fields

        return component_fields(_loaded(kinds[-1], permission), words.known.keys(), "method")


def _loaded(kind: str, permission: Permission) -> Component:
    try:
        return PARTITIONERS.load(kind, permission)
    except ValueError as error:
        raise ValueError(f"method is {kind!r}: {error} (--method)") from error


@dataclass(frozen=True)
class WorkOptions:
    """Options of the partitioning."""

    balance: Annotated[
        str,
        typer.Option(
            help="Quantities to balance, separated by commas: nodes, edges, bytes, names of splits "
            "(default: nodes, and train if that split exists).",
            metavar="NAMES",
            show_default=False,
        ),
    ] = ""
    slack: Annotated[
        float,
        typer.Option(
            help="Fraction by which a part may exceed its equal share of each quantity in --balance."
        ),
    ] = 0.05
    seed: Annotated[int, typer.Option(help="Seed of the methods random, hash and metis.")] = 0
    threads: Annotated[
        int, typer.Option(help="Threads; the parts do not depend on their number. 0: one per core.")
    ] = 0


@dataclass(frozen=True)
class EstimateOptions:
    """Options of the estimate of remote nodes."""

    fanouts: Annotated[
        str,
        typer.Option(
            help="Fanouts such as 15,10,5, to estimate the share of remote nodes (default: no estimate).",
            metavar="NUMBERS",
            show_default=False,
        ),
    ] = ""
    batch_size: Annotated[int, typer.Option(help="Seeds per step over all machines, for --fanouts.")] = 1024


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("partition", cls=PartitionCommand)(takes_groups(partition))
    app.command("part-files")(part_files)


def partition(
    context: typer.Context,
    graph: GraphArgument,
    out: Annotated[
        Path, typer.Argument(help="Folder of the partitioned graph to write.", show_default=False)
    ],
    parts: Annotated[int, typer.Option(help="Number of parts, usually one per machine.", show_default=False)],
    method: Annotated[
        str,
        typer.Option(
            help="Partitioning method. ldg and fennel stream over the edges and need memory per node only. "
            "metis cuts fewer edges of small graphs, but keeps all edges in memory and needs khop\\[metis]. "
            "random, range and hash do not read edges. package.module:Class is a custom method.",
            metavar="|".join(PARTITIONERS.builtin),
            autocompletion=PARTITIONERS.kinds,
        ),
    ] = "ldg",
    *,
    work: WorkOptions,
    estimate: EstimateOptions,
    report: Report,
) -> None:
    """Partition a graph: each part is a graph folder with its nodes, their in-edges and columns."""
    hops = fanout_list(estimate.fanouts) if estimate.fanouts else []
    source = folder_of(graph)
    given = values_of_components(context)
    if method not in PARTITIONERS.builtin:
        from khop.run.check import checked_options

        given = checked_options(RawRun(given, COMMAND_LINE), _loaded(method, ANY_NAMED))
    from khop.cli.graph import PartitionCall as Settings
    from khop.cli.graph import write_parts

    settings = Settings(
        method,
        [name.strip() for name in work.balance.split(",")] if work.balance else None,
        work.slack,
        work.seed,
        hops,
        estimate.batch_size,
        given,
        work.threads,
    )
    write_parts(source, out, parts, settings, report.as_json)


def part_files(
    graph: Annotated[Path, typer.Argument(help="Folder of a partitioned graph.", show_default=False)],
    machine: Annotated[
        int, typer.Option(help="Index of the machine from 0, like torchrun --node-rank.", show_default=False)
    ],
    machines: Annotated[int, typer.Option(help="Number of machines.", show_default=False)],
    procs: Annotated[int, typer.Option(help="Processes per machine.")] = 1,
    placement: Annotated[
        Placement, typer.Option(help="Placement of the graph, as in khop train --placement.")
    ] = Placement.FEATURES,
) -> None:
    """List the files of a partitioned graph that one machine needs, e.g. for rsync --files-from=-."""
    from khop.cli.graph import print_part_files

    print_part_files(graph, placement, machine, machines, procs)
