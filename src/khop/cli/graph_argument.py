"""The graph argument of commands: a folder, or the name of a built-in graph."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from khop.datasets.names import BUILTIN_NAMES, builtin_path
from khop.user_cache import cache_folder

GraphArgument = Annotated[str, typer.Argument(help="Graph folder, or name of a built-in graph.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")]


@dataclass(frozen=True)
class Report:
    """Option of a command for its output."""

    as_json: AsJson = False


def folder_of(graph: str) -> Path:
    """Return the folder of a graph. A built-in graph is unpacked first."""
    if graph not in BUILTIN_NAMES:
        return Path(graph)
    unpacked = builtin_path(graph, cache_folder())
    if unpacked.exists():
        return unpacked
    from khop.datasets.builtin import builtin_folder

    return builtin_folder(graph, cache_folder())
