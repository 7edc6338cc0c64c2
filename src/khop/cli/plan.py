"""`khop plan`: what a graph that need not exist yet would take of how many machines."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.filesize import decimal
from rich.table import Table

from khop.cli.graph_argument import AsJson
from khop.cli.numbers import fanout_list, whole
from khop.loading.cores import usable_cores
from khop.planning.constants import MEASURED, Constants
from khop.planning.machines import fewest_machines
from khop.planning.measure import measured
from khop.planning.prediction import Placement, Prediction, predict
from khop.planning.workload import Cluster, GraphSize, Run
from khop.process_memory import tune_memory

_SHOWN = {
    Placement.REPLICATED: "all edges\non every machine",
    Placement.PARTITIONED: "edges shared out\nlike features",
}

_IN_WORDS = {
    Placement.REPLICATED: "all edges on every machine",
    Placement.PARTITIONED: "edges shared out like features",
}


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
    constants = _measured() if measure else MEASURED
    found = predict(graph, run, cluster, constants)
    fewest = fewest_machines(graph, run, cluster, constants, memory * 1e9) if memory else {}
    if as_json:
        document = _document(graph, run, cluster, constants, found)
        typer.echo(json.dumps({**document, "fewest_machines": fewest} if fewest else document))
        return
    console = Console()
    console.print(_table(graph, run, cluster, found))
    for placement, enough in fewest.items():
        console.print(f"{_fewest(enough)} of {memory:g} GB hold it with {_IN_WORDS[placement]}.")
    costs = "measured here" if measure else "those of cores of AMD EPYC; --measure takes this machine's"
    console.print(f"Costs are {costs}. How each number is made: docs/planning.md.")


def _fewest(machines: int | None) -> str:
    if machines is None:
        return "No machines"
    return "One machine" if machines == 1 else f"{machines:,} machines"


def _measured() -> Constants:
    tune_memory()
    return measured()


def _document(
    graph: GraphSize, run: Run, cluster: Cluster, constants: Constants, found: Sequence[Prediction]
) -> dict[str, Any]:
    return {
        "graph": asdict(graph),
        "run": asdict(run),
        "cluster": asdict(cluster),
        "constants": asdict(constants),
        "placements": {each.placement: _figures(each) for each in found},
    }


def _figures(found: Prediction) -> dict[str, Any]:
    memory, traffic, times = found.memory, found.traffic, found.times
    return {
        "memory_bytes": {**asdict(memory), "total": memory.total},
        "traffic": {**asdict(traffic), "bytes": traffic.bytes},
        "seconds": {
            **asdict(times),
            "cores": times.cores,
            "network": times.network,
            "waiting": times.waiting,
            "step": times.step,
        },
        "bottleneck": times.bottleneck,
    }


def _table(graph: GraphSize, run: Run, cluster: Cluster, found: Sequence[Prediction]) -> Table:
    title = (
        f"{graph.nodes:,} nodes, {graph.edges:,} edges on {cluster.machines:,} machines: a step of "
        f"{run.batch_size:,} seeds"
    )
    table = Table(title=title, title_justify="left", title_style="bold", box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("each machine")
    for each in found:
        table.add_column(_SHOWN[each.placement], justify="right")
    for name, shown in _rows():
        table.add_row(name, *(shown(each) for each in found), end_section=name in _LAST_OF_SECTIONS)
    return table


_LAST_OF_SECTIONS = ("memory", "bytes sent", "a step")
_Shown = Callable[[Prediction], str]


def _rows() -> list[tuple[str, _Shown]]:
    """What stands in each line, by placement."""
    return [
        ("  topology, mapped", lambda p: _bytes(p.memory.topology)),
        ("  features, mapped", lambda p: _bytes(p.memory.features)),
        ("  cache", lambda p: _bytes(p.memory.cache)),
        ("  batches in flight", lambda p: _bytes(p.memory.batches)),
        ("  training", lambda p: _bytes(p.memory.training)),
        ("memory", lambda p: _bytes(p.memory.total)),
        ("nodes of its share of a batch", lambda p: f"{p.traffic.nodes:,.0f}"),
        ("  on other machines", lambda p: f"{p.traffic.remote_rows:,.0f}"),
        ("  of these, not in the cache", lambda p: f"{p.traffic.fetched_rows:,.0f}"),
        ("exchanges of a batch", lambda p: f"{p.traffic.collectives}"),
        ("bytes sent", lambda p: _bytes(p.traffic.bytes)),
        ("  sampling", lambda p: _ms(p.times.sampling)),
        ("  gathering", lambda p: _ms(p.times.gathering)),
        ("  training", lambda p: _ms(p.times.training)),
        ("  exchanging", lambda p: _ms(p.times.exchanging)),
        ("  calls", lambda p: _ms(p.times.calls)),
        ("cores are busy for", lambda p: _ms(p.times.cores)),
        ("the network", lambda p: _ms(p.times.network)),
        ("messages travel for", lambda p: _ms(p.times.waiting)),
        ("a step", lambda p: _ms(p.times.step)),
        ("bottleneck", lambda p: p.times.bottleneck),
    ]


def _bytes(count: float) -> str:
    return decimal(round(count))


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:,.1f} ms"
