"""`khop graph split`: split links into training, validation and test."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from khop.cli.arguments import GraphArgument, folder_of

_PART = "a share below 1, or a number of links"


def split(
    graph: GraphArgument,
    out: Annotated[Path, typer.Argument(help="Folder of the split to write.", show_default=False)],
    links: Annotated[
        list[str],
        typer.Option(
            help='Edge type to split, e.g. "user buys item", together with its reverse; can be repeated.',
            metavar="TYPE",
            show_default=False,
        ),
    ],
    val: Annotated[float, typer.Option(help=f"Validation links: {_PART}.")] = 0.1,
    test: Annotated[float, typer.Option(help=f"Test links: {_PART}.")] = 0.1,
    disjoint_share: Annotated[
        float,
        typer.Option(help="Share of the training links over which no messages pass; they are only targets."),
    ] = 0.0,
    negatives: Annotated[
        int, typer.Option(help="Negatives per validation or test link; never edges of the graph.")
    ] = 1,
    label: Annotated[
        str | None,
        typer.Option(help="Edge column with the labels of the links (default: no labels).", metavar="COLUMN"),
    ] = None,
    time: Annotated[
        str | None,
        typer.Option(help="Edge column with the times of the links (default: no times).", metavar="COLUMN"),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the split and of the negatives.")] = 0,
) -> None:
    """Split the links of a graph into training, validation and test links.

    Parallel edges and their reverse edges are assigned to the same part. Open the result in Python with
    khop.LinkSplit.open(OUT).
    """
    folder = folder_of(graph)
    from khop.cli import graph as work

    settings = work.Settings(val, test, disjoint_share, negatives, label, time, seed)
    work.split(folder, out, links, settings)
