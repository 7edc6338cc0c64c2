"""The work of `khop graph split`: split the links of a graph into training, validation and test."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import typer

from khop.api.open_graph import open_graph
from khop.api.split_links import split_links
from khop.cli.bytes_bar import bytes_bar
from khop.config.parts import words_of
from khop.graph.atomic import refuse_existing
from khop.graph.damage import refuse_damage
from khop.schema import EdgeType, Schema


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
            refuse_damage(whole.folder, notice)  # first, because edges of a damaged graph must not be read
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
    typer.echo(f"{out}: links of {', '.join(links)}: {counts}. Show a part: khop info {out / 'train'}")


def _part(number: float) -> float | int:
    return int(number) if number >= 1 and number.is_integer() else number


def _named(schema: Schema, words: str, graph: Path) -> EdgeType:
    there = {words_of(edge_type): edge_type for edge_type in schema.edge_types}
    if words not in there:
        raise ValueError(f"--links {words!r}: the edge types of {graph} are {', '.join(there) or 'none'}")
    return there[words]
