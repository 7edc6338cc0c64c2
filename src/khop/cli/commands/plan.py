"""`khop plan`: predict memory, traffic and time of a run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from khop.cli.arguments import AsJson
from khop.cli.lines import fanout_list, whole
from khop.cli.options import takes_groups
from khop.process_tuning import usable_cores
from khop.run.planning.workload import Cluster, GraphSize, PlannedRun


@dataclass(frozen=True)
class GraphOptions:
    """Options for the graph, which does not have to exist yet."""

    graph: Annotated[
        Path | None,
        typer.Option(
            help="Graph folder from which to count nodes, edges, features and degrees (default: none).",
            show_default=False,
        ),
    ] = None
    nodes: Annotated[
        str | None,
        typer.Option(help="Number of nodes, without --graph, e.g. 2449029 or 1e9.", show_default=False),
    ] = None
    edges: Annotated[
        str | None, typer.Option(help="Number of edges, without --graph, e.g. 1e11.", show_default=False)
    ] = None
    feature_bytes: Annotated[
        int | None,
        typer.Option(
            help="Bytes of features per node, without --graph, e.g. 400 for 100 float32 numbers.",
            show_default=False,
        ),
    ] = None


@dataclass(frozen=True)
class MachineOptions:
    """Options for the machines."""

    machines: Annotated[
        int, typer.Option(help="Number of machines, each with one part and one process.", show_default=False)
    ]
    network: Annotated[
        float,
        typer.Option(help="Network bandwidth per machine and direction, in Gbit/s.", show_default=False),
    ]
    latency: Annotated[
        float, typer.Option(help="Latency of a message between two machines, in milliseconds.")
    ] = 0.1
    cores: Annotated[int, typer.Option(help="Cores per machine; 0: as many as this machine.")] = 0
    servers: Annotated[
        int,
        typer.Option(
            help="Additional machines that store the graph and make all batches (default 0: none).",
            show_default=False,
        ),
    ] = 0


@dataclass(frozen=True)
class RunOptions:
    """Options for the training run, except its fanouts."""

    batch_size: Annotated[
        int,
        typer.Option(
            help="Seeds per step over all machines (default 0: 1024 per machine).", show_default=False
        ),
    ] = 0
    hidden: Annotated[int, typer.Option(help="Width of the hidden layers of the GraphSAGE model.")] = 256
    outputs: Annotated[int, typer.Option(help="Width of the model's outputs: the number of classes.")] = 47
    remote_share: Annotated[
        float | None,
        typer.Option(
            help="Share of a batch's nodes that are in other parts, as printed by khop partition --fanouts "
            "(default: the share with random parts).",
            show_default=False,
        ),
    ] = None


@dataclass(frozen=True)
class PlanOptions:
    """Options for the memory of a machine and for the output."""

    cache: Annotated[
        float, typer.Option(help="Cached remote rows per machine, as a share of its local rows.")
    ] = 0.2
    memory: Annotated[
        float,
        typer.Option(
            help="Memory per machine in GB, to estimate the number of machines (default 0: no estimate).",
            show_default=False,
        ),
    ] = 0
    measure: Annotated[
        bool,
        typer.Option(
            "--measure", help="Measure the costs on this machine first; takes a few seconds and 1 GB."
        ),
    ] = False
    as_json: AsJson = False


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("plan")(takes_groups(plan))


def _size(graph: GraphOptions, run: PlannedRun) -> GraphSize:
    given = (graph.nodes, graph.edges, graph.feature_bytes)
    if graph.graph is not None:
        if any(value is not None for value in given):
            raise ValueError(
                f"--graph {graph.graph}: excludes --nodes, --edges and --feature-bytes; leave these out"
            )
        from khop.cli.plan import counted

        return counted(graph.graph, run.fanouts)
    nodes, edges, feature_bytes = given
    if nodes is None or edges is None or feature_bytes is None:
        raise ValueError("give --graph FOLDER, or all of --nodes, --edges and --feature-bytes")
    return GraphSize(whole("--nodes", nodes), whole("--edges", edges), feature_bytes)


def plan(
    graph: GraphOptions,
    fanouts: Annotated[
        str, typer.Option(help="Fanouts, one per hop, e.g. 15,10,5.", metavar="NUMBERS", show_default=False)
    ],
    cluster: MachineOptions,
    run: RunOptions,
    asked: PlanOptions,
) -> None:
    """Predict memory, traffic, time per step and the bottleneck of training on several machines."""
    machines = Cluster(
        cluster.machines,
        cluster.cores or usable_cores(),
        cluster.network,
        cluster.latency / 1000,
        asked.cache,
    )
    batch_size = run.batch_size or 1024 * cluster.machines
    planned = PlannedRun(tuple(fanout_list(fanouts)), batch_size, run.hidden, run.outputs, run.remote_share)
    size = _size(graph, planned)
    from khop.cli import plan as work

    work.print_plan(
        size, planned, machines, work.PlanCall(asked.memory, asked.measure, asked.as_json, cluster.servers)
    )
