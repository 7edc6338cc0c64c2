"""`khop plan`."""

from __future__ import annotations

from typing import Annotated

import typer

from khop.cli.graph_argument import AsJson
from khop.cli.numbers import fanout_list, whole
from khop.loading.cores import usable_cores
from khop.planning.workload import Cluster, GraphSize, Run


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(plan)


def plan(
    nodes: Annotated[str, typer.Option(help="Of the graph, as 2449029 or 1e9.", show_default=False)],
    edges: Annotated[str, typer.Option(help="Of the graph, as 1e11.", show_default=False)],
    feature_bytes: Annotated[
        int, typer.Option(help="Of a node: 400 for 100 float32 numbers.", show_default=False)
    ],
    fanouts: Annotated[str, typer.Option(help="As 15,10,5.", metavar="NUMBERS", show_default=False)],
    machines: Annotated[int, typer.Option(help="Each with a part, and a process.", show_default=False)],
    network: Annotated[float, typer.Option(help="Gbit/s of each machine, each way.", show_default=False)],
    latency: Annotated[float, typer.Option(help="Milliseconds of a message between two machines.")] = 0.1,
    cores: Annotated[int, typer.Option(help="Of each machine; 0: as this one.")] = 0,
    batch_size: Annotated[
        int, typer.Option(help="Seeds of a step over all machines; 0: 1024 for each.", show_default=False)
    ] = 0,
    hidden: Annotated[int, typer.Option(help="Width of the GraphSAGE that is trained.")] = 256,
    outputs: Annotated[int, typer.Option(help="Of the model: classes.")] = 47,
    remote_share: Annotated[
        float | None,
        typer.Option(
            help="Of a batch's nodes, on other machines, as khop partition --fanouts says; default: as parts "
            "made by chance have it.",
            show_default=False,
        ),
    ] = None,
    cache: Annotated[
        float, typer.Option(help="Rows of others that a machine keeps, as a share of its own.")
    ] = 0.2,
    memory: Annotated[
        float,
        typer.Option(help="GB of each machine: says how many it takes. 0: does not.", show_default=False),
    ] = 0,
    measure: Annotated[
        bool,
        typer.Option("--measure", help="Measure first what work costs here: some seconds, 1 GB."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Predict memory, traffic and time per step of a graph on several machines, and what will hold it up."""
    graph = GraphSize(whole("--nodes", nodes), whole("--edges", edges), feature_bytes)
    cluster = Cluster(machines, cores or usable_cores(), network, latency / 1000, cache)
    run = Run(tuple(fanout_list(fanouts)), batch_size or 1024 * machines, hidden, outputs, remote_share)
    from khop.cli import plan as work

    work.print_plan(graph, run, cluster, work.Request(memory, measure, as_json))
