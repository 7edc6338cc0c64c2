"""How a command is told of a graph: by its folder, or by the name of a built-in one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from khop.datasets.names import BUILTIN_NAMES, builtin_path
from khop.user_cache import cache_folder

GraphArgument = Annotated[str, typer.Argument(help="A graph folder, or the name of a built-in graph.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")]


def folder_of(graph: str) -> Path:
    """The folder, that of a built-in graph unpacked."""
    if graph not in BUILTIN_NAMES:
        return Path(graph)
    unpacked = builtin_path(graph, cache_folder())
    if unpacked.exists():
        return unpacked
    from khop.datasets.builtin import builtin_folder

    return builtin_folder(graph, cache_folder())
