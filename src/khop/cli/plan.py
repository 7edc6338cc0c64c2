"""Implementation of `khop plan`: predicted resources of a run, and the number of machines it needs.

The graph does not have to exist yet.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import typer
from rich.box import SIMPLE_HEAD
from rich.filesize import decimal
from rich.table import Table

from khop.cli.terminal import bytes_bar, say, say_next, table_console
from khop.process_tuning import tune_memory
from khop.run.planning.prediction import (
    MEASURED,
    Constants,
    EdgePlacement,
    FromDisk,
    Prediction,
    ServersPrediction,
    fewest_machines,
    from_disk,
    predict,
    predict_servers,
)
from khop.run.planning.workload import Cluster, GraphSize, PlannedRun

_SHOWN = {
    EdgePlacement.REPLICATED: "all edges\non every machine",
    EdgePlacement.PARTITIONED: "edges partitioned\nlike features",
}

_IN_WORDS = {
    EdgePlacement.REPLICATED: "all edges on every machine",
    EdgePlacement.PARTITIONED: "edges partitioned like features",
}


@dataclass(frozen=True)
class PlanCall:
    """The arguments of a call of the command, except those of the plan."""

    memory: float  # memory per machine in GB; 0: not given
    measure: bool
    as_json: bool
    servers: int = 0  # 0: no plan with servers


def print_plan(graph: GraphSize, run: PlannedRun, cluster: Cluster, request: PlanCall) -> None:
    """Make a plan, and print it as tables or as one JSON object."""
    memory, constants = request.memory, _measured() if request.measure else MEASURED
    found = predict(graph, run, cluster, constants)
    fewest = fewest_machines(graph, run, cluster, constants, memory * 1e9) if memory else {}
    disk = from_disk(graph, run, cluster, constants, memory * 1e9) if memory else None
    served = predict_servers(graph, run, cluster, request.servers, constants) if request.servers else None
    if request.as_json:
        document = _document(graph, run, cluster, constants, found)
        if memory:
            document = {**document, "fewest_machines": fewest, "from_disk": disk and asdict(disk)}
        if served is not None:
            document["servers"] = {**asdict(served), "step": served.step, "enough": served.enough}
        typer.echo(json.dumps(document))
        return
    console = table_console()
    console.print(_table(graph, run, cluster, found))
    if served is not None:
        console.print(_servers_table(cluster, served))
    for placement, enough in fewest.items():
        say(console, f"{_fewest(enough)} of {memory:g} GB are enough with {_IN_WORDS[placement]}.")
    if memory:
        say(console, _from_disk(memory, disk))
    if graph.degrees is None:
        say(
            console,
            "The totals are those of one edge type; --graph counts all types of a graph.",
        )
    costs = "this machine" if request.measure else "AMD EPYC cores; --measure measures this machine"
    say(console, f"The times are for {costs}. docs/planning.md explains how each number is computed.")
    say_next(console, *_next(cluster, served))


def _next(cluster: Cluster, served: ServersPrediction | None) -> list[tuple[str, ...]]:
    """Return the commands that carry out a plan."""
    train = ("khop", "train", "run.toml")
    if served is not None:
        return [("khop", "serve", "GRAPH", "--listen", "HOST:7311"), (*train, "--servers", "HOST:7311")]
    parts = ("khop", "partition", "GRAPH", "PARTS", "--parts", str(cluster.machines))
    return [parts, (*train, "--graph", "PARTS")]


def _fewest(machines: int | None) -> str:
    if machines is None:
        return "No machines"
    return "One machine" if machines == 1 else f"{machines:,} machines"


def _from_disk(memory: float, found: FromDisk | None) -> str:
    if found is None:
        return f"One machine of {memory:g} GB cannot train from disk: the edges do not fit in its memory."
    return (
        f"One machine of {memory:g} GB trains from disk at {found.step:,.2f} s/step: {found.read_rows:,.0f} "
        f"of {found.nodes:,.0f} rows are read ({found.cold:,.2f} s for a first batch)."
    )


def counted(folder: Path, fanouts: Sequence[int]) -> GraphSize:
    """Count a graph folder for a plan with these fanouts."""
    # imports torch
    from khop.run.planning.graph_size import graph_size

    with bytes_bar("opening the graph") as notice:
        return graph_size(folder, fanouts, notice)


def _measured() -> Constants:
    # imports torch, which the rest of a plan does not need
    from khop.run.planning.measure import measured

    tune_memory()
    return measured()


def _document(
    graph: GraphSize, run: PlannedRun, cluster: Cluster, constants: Constants, found: Sequence[Prediction]
) -> dict[str, Any]:
    return {
        "graph": {
            "nodes": graph.nodes,
            "edges": graph.edges,
            "feature_bytes": graph.feature_bytes,
            "features": graph.numbers,
            "edge_bytes": graph.edge_bytes,
        },
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


def _table(graph: GraphSize, run: PlannedRun, cluster: Cluster, found: Sequence[Prediction]) -> Table:
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


def _servers_table(cluster: Cluster, found: ServersPrediction) -> Table:
    title = f"{found.servers:,} servers with the graph, {cluster.machines:,} trainers without it"
    table = Table(title=title, title_justify="left", title_style="bold", box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("each machine")
    for name in ("server", "trainer"):
        table.add_column(name, justify="right")
    for name, *shown in (
        ("memory", _bytes(found.server_memory), _bytes(found.trainer_memory)),
        ("bytes sent for batches", _bytes(found.sent_bytes), "0 bytes"),
        ("bytes received for batches", "0 bytes", _bytes(found.batch_bytes)),
        ("time of the cores", _ms(found.server_cores), _ms(found.trainer_cores)),
        ("time of the network", _ms(found.server_network), _ms(found.trainer_network)),
        ("a step", "", _ms(found.step)),
        ("bottleneck", "", found.bottleneck),
        ("servers for which trainers do not wait", f"{found.enough:,}", ""),
    ):
        table.add_row(name, *shown)
    return table


_LAST_OF_SECTIONS = ("memory", "bytes sent", "a step")
_Shown = Callable[[Prediction], str]


def _rows() -> list[tuple[str, _Shown]]:
    """Return the name of each table row and the function that formats its value for a placement."""
    return [
        ("  topology, mapped", lambda p: _bytes(p.memory.topology)),
        ("  features, mapped", lambda p: _bytes(p.memory.features)),
        ("  cache", lambda p: _bytes(p.memory.cache)),
        ("  batches in flight", lambda p: _bytes(p.memory.batches)),
        ("  training", lambda p: _bytes(p.memory.training)),
        ("memory", lambda p: _bytes(p.memory.total)),
        ("nodes in its share of a batch", lambda p: f"{p.traffic.nodes:,.0f}"),
        ("  on other machines", lambda p: f"{p.traffic.remote_rows:,.0f}"),
        ("  of these, not in the cache", lambda p: f"{p.traffic.fetched_rows:,.0f}"),
        ("collectives per batch", lambda p: f"{p.traffic.collectives}"),
        ("bytes sent", lambda p: _bytes(p.traffic.bytes)),
        ("  sampling", lambda p: _ms(p.times.sampling)),
        ("  gathering", lambda p: _ms(p.times.gathering)),
        ("  training", lambda p: _ms(p.times.training)),
        ("  exchanging", lambda p: _ms(p.times.exchanging)),
        ("  calls", lambda p: _ms(p.times.calls)),
        ("time of the cores", lambda p: _ms(p.times.cores)),
        ("time of the network", lambda p: _ms(p.times.network)),
        ("latency of messages", lambda p: _ms(p.times.waiting)),
        ("a step", lambda p: _ms(p.times.step)),
        ("bottleneck", lambda p: p.times.bottleneck),
    ]


def _bytes(count: float) -> str:
    return decimal(round(count))


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:,.1f} ms"
