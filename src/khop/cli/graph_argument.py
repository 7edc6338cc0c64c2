"""How a command is told of a graph: by its folder, or by the name of a built-in one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from khop.datasets.builtin import builtin_folder, builtin_names
from khop.user_cache import cache_folder

GraphArgument = Annotated[str, typer.Argument(help="A graph folder, or the name of a built-in graph.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")]


def folder_of(graph: str) -> Path:
    """The folder, that of a built-in graph unpacked."""
    return builtin_folder(graph, cache_folder()) if graph in builtin_names() else Path(graph)
