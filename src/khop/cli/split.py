"""`khop graph split`: the links of a graph dealt to training, validation and test."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from khop.api import open_graph
from khop.cli.bytes_bar import bytes_bar
from khop.cli.graph_argument import GraphArgument, folder_of
from khop.config.parts import words_of
from khop.datasets.link_split import split_links
from khop.graph.atomic import refuse_existing
from khop.schema import EdgeType, Schema

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
    refuse_existing(out)
    whole = open_graph(folder_of(graph))
    edge_types = [_named(whole.schema, words, graph) for words in links]
    parts = split_links(
        whole,
        edge_types,
        _part(val),
        _part(test),
        disjoint_share=disjoint_share,
        negatives=negatives,
        label=label,
        time=time,
        seed=seed,
    )
    with bytes_bar() as notice:
        parts.save(out, notice=notice)
    asked = {"train": parts.train_links, "val": parts.val_links, "test": parts.test_links}
    counts = ", ".join(f"{name} {sum(of.counts.values()):,}" for name, of in asked.items())
    typer.echo(f"{out}: links of {', '.join(links)}: {counts}. Look at a part: khop info {out / 'train'}")


def _part(number: float) -> float | int:
    return int(number) if number >= 1 and number.is_integer() else number


def _named(schema: Schema, words: str, graph: str) -> EdgeType:
    there = {words_of(edge_type): edge_type for edge_type in schema.edge_types}
    if words not in there:
        raise ValueError(f"--links {words!r}: the edge types of {graph} are {', '.join(there) or 'none'}")
    return there[words]
