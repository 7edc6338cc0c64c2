"""`khop info`, `khop verify` and `khop graph`: show, check and rewrite graph folders."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from khop.cli.arguments import GraphArgument, Report, folder_of
from khop.cli.commands.shared import RankOptions
from khop.cli.commands.split import split
from khop.cli.options import takes_groups
from khop.data.partition.methods import PARTITIONERS


class NormChoice(StrEnum):
    """Weights of neighbors in a propagation."""

    MEAN = "mean"
    SYMMETRIC = "symmetric"


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("info")(takes_groups(info))
    app.command("verify")(takes_groups(verify))
    folders = typer.Typer(help="Write a new graph folder from an existing one.", no_args_is_help=True)
    folders.command("sort")(sort)
    folders.command("split")(split)
    folders.command("resplit")(resplit)
    folders.command("cluster")(cluster)
    folders.command("walks")(walks)
    folders.command("propagate")(takes_groups(propagate))
    app.add_typer(folders, name="graph")


def info(graph: GraphArgument, report: Report) -> None:
    """Show a graph folder: types, counts, degrees, columns, splits and sizes on disk.

    For a partitioned graph, the tables cover the whole graph and each part.
    """
    from khop.cli.info import print_info

    print_info(folder_of(graph), report.as_json)


def verify(graph: GraphArgument, report: Report) -> None:
    """Check all data of a graph folder: checksums, ids, offsets, lengths, labels and splits.

    For a partitioned graph, also check that the parts contain every node and edge exactly once.

    The exit code is 0 if no problem is found, otherwise 1.
    """
    folder = folder_of(graph)
    from khop.cli import graph as work

    work.verify(folder, report.as_json)


def resplit(
    graph: GraphArgument,
    out: Annotated[Path, typer.Argument(help="Graph folder to write.", show_default=False)],
    ratio: Annotated[
        str,
        typer.Option(
            help="Shares of training, validation and test nodes, such as 0.6,0.2,0.2. With two numbers, all "
            "others are test nodes.",
            metavar="TRAIN,VAL[,TEST]",
            show_default=False,
        ),
    ],
    label: Annotated[
        str | None, typer.Option(help="Label column (default: the only one).", metavar="COLUMN")
    ] = None,
    node_type: Annotated[
        str | None,
        typer.Option("--type", help="Node type with labels (default: the only one).", metavar="TYPE"),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the split.")] = 0,
) -> None:
    """Write a graph with random splits of the labeled nodes. Other arrays are shared with the old folder."""
    folder = folder_of(graph)
    from khop.cli import graph as work

    work.resplit(folder, out, ratio, label, node_type, seed)


def cluster(
    graph: GraphArgument,
    out: Annotated[Path, typer.Argument(help="Graph folder to write.", show_default=False)],
    clusters: Annotated[int, typer.Option(help="Number of clusters.", show_default=False)],
    method: Annotated[
        str,
        typer.Option(
            help="Method of khop partition. ldg and fennel stream over the edges. metis cuts fewer edges "
            "of small graphs, but keeps all edges in memory and needs khop\\[metis]. random, range and hash "
            "do not read edges.",
            metavar="|".join(PARTITIONERS.builtin),
            autocompletion=PARTITIONERS.kinds,
        ),
    ] = "ldg",
    column: Annotated[str, typer.Option(help="Name of the new node column.")] = "cluster",
    seed: Annotated[int, typer.Option(help="Seed of the methods random, hash and metis.")] = 0,
) -> None:
    """Write a graph with a column of node clusters, for khop train --sampler cluster."""
    folder = folder_of(graph)
    from khop.cli import graph as work

    work.cluster(folder, out, clusters, method, column, seed)


def walks(
    graph: GraphArgument,
    out: Annotated[Path, typer.Argument(help="Graph folder to write.", show_default=False)],
    path: Annotated[
        str,
        typer.Option(
            help="Edge types of one round of a walk, separated by commas, such as "
            '"user buys item, item bought_by user" for items. A step goes from the destination of an edge to '
            "its source, and a round ends at the node type where it starts.",
            show_default=False,
        ),
    ],
    relation: Annotated[str, typer.Option(help="Relation of the new edge type.")] = "visited",
    walks: Annotated[int, typer.Option(help="Number of walks per node.")] = 10,
    rounds: Annotated[int, typer.Option(help="Maximum number of rounds per walk.")] = 2,
    stop: Annotated[
        float, typer.Option(help="Probability that a walk stops before each additional round.")
    ] = 0.5,
    keep: Annotated[int, typer.Option(help="Number of neighbors per node: the most visited nodes.")] = 10,
    return_parameter: Annotated[
        float,
        typer.Option(
            "--return-parameter",
            "-p",
            metavar="P",
            help="Return parameter of node2vec, for a path of one edge type: a step back has weight 1 / P. "
            "With a large P, walks rarely return.",
        ),
    ] = 1.0,
    in_out_parameter: Annotated[
        float,
        typer.Option(
            "--in-out-parameter",
            "-q",
            metavar="Q",
            help="In-out parameter of node2vec: a step to a node that is not an in-neighbor of the "
            "previous node has weight 1 / Q. With a large Q, walks stay near their start.",
        ),
    ] = 1.0,
    seed: Annotated[int, typer.Option(help="Seed of the walks.")] = 0,
) -> None:
    """Write a graph with edges to the nodes that random walks visit most often, as in PinSAGE.

    Its column visits counts the visits. With one edge type and many rounds, they estimate personalized
    PageRank with restart probability stop. Steps are uniform, unless -p or -q differs from 1.
    """
    folder = folder_of(graph)
    from khop.cli import graph as work
    from khop.sampling.random_walks import Node2Vec, WalkCounts

    parameters = (return_parameter, in_out_parameter)
    bias = None if parameters == (1, 1) else Node2Vec(*parameters)
    work.walks(folder, out, path, relation, WalkCounts(walks, rounds, stop, keep), bias, seed)


def propagate(
    graph: GraphArgument,
    out: Annotated[Path, typer.Argument(help="Graph folder to write.", show_default=False)],
    columns: Annotated[
        str,
        typer.Option(
            help="Node columns to propagate, separated by commas.", metavar="COLUMNS", show_default=False
        ),
    ],
    hops: Annotated[int, typer.Option(help="Number of hops.")] = 3,
    norm: Annotated[
        NormChoice,
        typer.Option(
            help="Weights of neighbors: their mean (mean), or 1 / sqrt(d_source d_destination) (symmetric), "
            "for graphs of one edge type."
        ),
    ] = NormChoice.MEAN,
    memory: Annotated[
        str,
        typer.Option(
            help="Memory of the command, e.g. 4GB (default: half of free memory).",
            metavar="BYTES",
            show_default=False,
        ),
    ] = "",
    *,
    ranks: RankOptions,
) -> None:
    """Write a graph with node columns averaged over neighbors, such as x_1, x_2 and x_3, for the model mlp.

    With several edge types, a node gets the mean over the types whose sources have rows.
    To continue after a stop, run the same command again; the number of processes may change.
    """
    folder = folder_of(graph)
    from khop.cli.propagate import PropagateRequest, run_propagate

    names = tuple(name.strip() for name in columns.split(","))
    run_propagate(PropagateRequest(folder, out, names, hops, norm.value, memory), ranks)


def sort(
    graph: GraphArgument,
    out: Annotated[Path, typer.Argument(help="Graph folder to write.", show_default=False)],
    by: Annotated[
        str, typer.Option(help="Time column of edges or nodes.", metavar="COLUMN", show_default=False)
    ],
) -> None:
    """Write a graph with the edges of each node sorted by time, as temporal sampling requires.

    If both edges and nodes have the column, the later time is used.
    """
    folder = folder_of(graph)
    from khop.cli import graph as work

    work.sort(folder, out, by)
