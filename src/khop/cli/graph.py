"""The work of `khop verify`, `khop graph sort`, `khop graph cluster` and `khop graph walks`."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import typer

from khop.api.cluster_graph import cluster_graph
from khop.api.walk_graph import walk_graph
from khop.cli.bytes_bar import bytes_bar
from khop.cli.next_steps import tell_next
from khop.graph.atomic import refuse_existing
from khop.graph.csc_graph import open_csc_graph
from khop.graph.damage import refuse_damage
from khop.graph.folder import open_folder
from khop.graph.layout import is_partitioned
from khop.graph.save import save_graph
from khop.graph.verify import verify_folder
from khop.partition.verify import verify_partition
from khop.sampling.node2vec import Node2Vec
from khop.sampling.walk_neighbors import WalkCounts


def verify(folder: Path, as_json: bool) -> None:
    """Check a folder and print the findings. Exits with 1 if there are any."""
    with bytes_bar("checking") as notice:
        findings = (
            verify_partition(folder, notice) if is_partitioned(folder) else verify_folder(folder, notice)
        )
    if as_json:
        typer.echo(json.dumps({"path": str(folder), "findings": [asdict(finding) for finding in findings]}))
    else:
        for finding in findings:
            typer.echo(f"{folder / finding.file}: {finding.problem}")
        typer.echo(f"{folder}: {_findings(len(findings))}" if findings else f"{folder}: no problems found")
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
    typer.echo(f"{out}: sorted by {by}. Show it: khop info {out}")


def cluster(graph: Path, out: Path, clusters: int, method: str, column: str, seed: int) -> None:
    """Write a graph with the cluster of each node as a column."""
    with bytes_bar() as notice:
        cluster_graph(graph, out, clusters, method=method, column=column, seed=seed, notice=notice)
    typer.echo(f"{out}: {clusters:,} clusters. Train on them: khop train --graph {out} --sampler cluster")


def walks(
    graph: Path, out: Path, path: str, relation: str, counts: WalkCounts, bias: Node2Vec | None, seed: int
) -> None:
    """Write a graph with the most visited nodes of walks as an edge type."""
    walk = [name.strip() for name in path.split(",")]
    with bytes_bar() as notice:
        made = walk_graph(graph, out, walk, relation, counts, bias=bias, seed=seed, notice=notice)
    edge_type = " ".join(made)
    typer.echo(
        f"{out}: edges {edge_type} with visits. Train on them: khop train --graph {out} "
        f"--fanouts '{{{json.dumps(edge_type)} = {counts.keep}, \"*\" = 0}}' --weight visits"
    )


def _findings(count: int) -> str:
    return "1 finding" if count == 1 else f"{count} findings"
