"""Implementation of `khop verify`, `khop graph`, `khop partition` and `khop part-files`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import typer

from khop.api.open_graph import open_graph
from khop.api.partition import cluster_graph, partition_graph, walk_graph
from khop.api.split_links import split_links
from khop.cli.info import print_parts
from khop.cli.lines import shell_word
from khop.cli.terminal import bytes_bar, say_next, table_console, tell_next
from khop.data.partition.describe import describe_parts
from khop.data.partition.verify import verify_partition
from khop.data.resplit import resplit as random_splits
from khop.distributed.placement import machine_files
from khop.graph.atomic import refuse_existing
from khop.graph.build import save_graph
from khop.graph.folder import open_folder, refuse_damage
from khop.graph.layout import is_partitioned
from khop.graph.partitions.placements import Placement
from khop.graph.remote import with_urls
from khop.graph.store import open_csc_graph
from khop.graph.verify import verify_folder
from khop.run.parts import words_of
from khop.sampling.random_walks import Node2Vec, WalkCounts
from khop.schema import EdgeType, Schema


def verify(folder: Path, as_json: bool) -> None:
    """Check a folder and print the findings. Exits with code 1 if there are any."""
    with bytes_bar("checking") as notice:
        findings = (
            verify_partition(folder, notice) if is_partitioned(folder) else verify_folder(folder, notice)
        )
    if as_json:
        outcome = {"path": str(folder), "findings": [asdict(finding) for finding in findings]}
        typer.echo(with_urls(json.dumps(outcome)))
    else:
        for finding in findings:
            typer.echo(with_urls(f"{folder / finding.file}: {finding.problem}"))
        found = _findings(len(findings)) if findings else "no problems found"
        typer.echo(with_urls(f"{folder}: {found}"))
    if findings:
        raise typer.Exit(1)
    tell_next(("khop", "info", str(folder)))


def sort(graph: Path, out: Path, by: str) -> None:
    """Write a graph with the edges of each node in the order of the column `by`."""
    folder = open_folder(graph)
    splits = {name: folder.split(name) for name in folder.split_names}
    refuse_existing(out)
    with bytes_bar() as notice:
        refuse_damage(folder, notice)
        save_graph(out, open_csc_graph(folder), folder.columns(), splits, notice, sort_by=by, origin=folder)
    typer.echo(f"{out}: sorted by {by}. Show it: khop info {shell_word(str(out))}")


def resplit(graph: Path, out: Path, ratio: str, label: str | None, node_type: str | None, seed: int) -> None:
    """Write a graph with random splits of the labeled nodes."""
    try:
        shares = [float(share) for share in ratio.split(",")]
    except ValueError:
        raise ValueError(f"--ratio {ratio!r}: must be numbers, such as 0.6,0.2,0.2") from None
    refuse_existing(out)
    with bytes_bar() as notice:
        made = random_splits(graph, out, shares, node_type=node_type, label=label, seed=seed, notice=notice)
    counts = ", ".join(f"{name} {count:,}" for name, count in made.counts.items())
    train = f"khop train --graph {shell_word(str(out))}"
    typer.echo("\n".join([f"{out}: {counts}. Train on it: {train}", *made.notes]))


def cluster(graph: Path, out: Path, clusters: int, method: str, column: str, seed: int) -> None:
    """Write a graph with a column of node clusters."""
    with bytes_bar() as notice:
        cluster_graph(graph, out, clusters, method=method, column=column, seed=seed, notice=notice)
    train = f"khop train --graph {shell_word(str(out))} --sampler cluster"
    typer.echo(f"{out}: {clusters:,} clusters. Train on them: {train}")


def walks(
    graph: Path, out: Path, path: str, relation: str, counts: WalkCounts, bias: Node2Vec | None, seed: int
) -> None:
    """Write a graph with edges to the nodes that random walks visit most often."""
    walk = [name.strip() for name in path.split(",")]
    with bytes_bar() as notice:
        made = walk_graph(graph, out, walk, relation, counts, bias=bias, seed=seed, notice=notice)
    edge_type = " ".join(made)
    fanouts = shell_word(f'{{{json.dumps(edge_type)} = {counts.keep}, "*" = 0}}')
    typer.echo(
        f"{out}: edges {edge_type} with visits. Train on them: khop train --graph {shell_word(str(out))} "
        f"--fanouts {fanouts} --weight visits"
    )


def _findings(count: int) -> str:
    return "1 finding" if count == 1 else f"{count} findings"


@dataclass(frozen=True)
class Settings:
    """Options of the command."""

    val: float
    test: float
    disjoint_share: float
    negatives: int
    label: str | None
    time: str | None
    seed: int


def split(folder: Path, out: Path, links: Sequence[str], settings: Settings) -> None:
    """Write a split of the links of some edge types."""
    refuse_existing(out)
    whole = open_graph(folder)
    edge_types = [_named(whole.schema, words, folder) for words in links]
    if whole.folder is not None:
        with bytes_bar() as notice:
            refuse_damage(whole.folder, notice)  # first, so that edges of a damaged graph are not read
    parts = split_links(
        whole,
        edge_types,
        _part(settings.val),
        _part(settings.test),
        disjoint_share=settings.disjoint_share,
        negatives=settings.negatives,
        label=settings.label,
        time=settings.time,
        seed=settings.seed,
    )
    with bytes_bar() as notice:
        parts.save(out, notice=notice)
    asked = {"train": parts.train_links, "val": parts.val_links, "test": parts.test_links}
    counts = ", ".join(f"{name} {sum(of.counts.values()):,}" for name, of in asked.items())
    info = f"khop info {shell_word(str(out / 'train'))}"
    typer.echo(f"{out}: links of {', '.join(links)}: {counts}. Show a part: {info}")


def _part(number: float) -> float | int:
    return int(number) if number >= 1 and number.is_integer() else number


def _named(schema: Schema, words: str, graph: Path) -> EdgeType:
    there = {words_of(edge_type): edge_type for edge_type in schema.edge_types}
    if words not in there:
        raise ValueError(f"--links {words!r}: the edge types of {graph} are {', '.join(there) or 'none'}")
    return there[words]


@dataclass(frozen=True)
class PartitionCall:
    """Options of the command."""

    method: str
    balance: Sequence[str] | None
    slack: float
    seed: int
    fanouts: Sequence[int]
    batch_size: int
    method_options: Mapping[str, object]
    threads: int


def write_parts(source: Path, out: Path, parts: int, settings: PartitionCall, as_json: bool) -> None:
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
