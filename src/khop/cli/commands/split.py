"""`khop graph split`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from khop.cli.graph_argument import GraphArgument, folder_of

_PART = "share of the links, or from 1 on their number"


def split(
    graph: GraphArgument,
    out: Annotated[Path, typer.Argument(help="The folder of the split to write.", show_default=False)],
    links: Annotated[
        list[str],
        typer.Option(
            help='Edge type to split, as "user buys item", with its reverse; may be given several times.',
            metavar="TYPE",
            show_default=False,
        ),
    ],
    val: Annotated[float, typer.Option(help=f"Held out to choose a model: {_PART}.")] = 0.1,
    test: Annotated[float, typer.Option(help=f"Held out and only measured: {_PART}.")] = 0.1,
    disjoint_share: Annotated[
        float, typer.Option(help="Share of the training links that are asked and carry no message.")
    ] = 0.0,
    negatives: Annotated[
        int, typer.Option(help="Pairs that no edge joins, for each link that is held out.")
    ] = 1,
    label: Annotated[
        str | None, typer.Option(help="Edge column that is the links' labels.", metavar="COLUMN")
    ] = None,
    time: Annotated[
        str | None, typer.Option(help="Edge column that is the links' times.", metavar="COLUMN")
    ] = None,
    seed: Annotated[int, typer.Option(help="Decides who gets what.")] = 0,
) -> None:
    """Deal the links of a graph to training, validation and test, and write what each part may hear of.

    Edges between the same two nodes stay together, those of the reverse type too. Programs open it by
    khop.LinkSplit.open(OUT).
    """
    folder = folder_of(graph)
    from khop.cli import split as work

    settings = work.Settings(val, test, disjoint_share, negatives, label, time, seed)
    work.split(folder, out, links, settings)
