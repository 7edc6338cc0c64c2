"""The work of `khop append`."""

from __future__ import annotations

import os
from pathlib import Path

import typer

from khop.loading.byte_size import byte_size
from khop.loading.cores import allowed_cores


def run_append(
    graph: Path, spec: Path | None, delete: list[str], split: str, memory: str, threads: int
) -> None:
    """Append a spec or delete nodes, and print the counts."""
    try:
        from khop.importing.append import append
    except ImportError as error:
        raise ValueError(str(error)) from None
    from khop.cli.bytes_bar import bytes_bar

    with bytes_bar() as notice:
        done = append(
            graph, spec, delete=ids_by_type(delete) or None, split=split,
            memory=byte_size(memory, "memory") if memory else None,
            threads=threads or allowed_cores(), environment=os.environ, notice=notice,
        )  # fmt: skip
    typer.echo(f"{graph}: {done}\nShow it: khop info {graph}")


def ids_by_type(words: list[str]) -> dict[str, list[str]]:
    """Return the ids of `TYPE=ID` and `TYPE=@FILE` by node type."""
    found: dict[str, list[str]] = {}
    for word in words:
        node_type, equals, id_ = word.partition("=")
        if not equals or not node_type or not id_:
            raise ValueError(
                f"--delete {word!r}: give a node type and an id, as user=u-4711 or user=@ids.txt"
            )
        ids = [id_]
        if id_.startswith("@"):
            file = Path(id_[1:])
            if not file.is_file():
                raise ValueError(f"--delete {word!r}: {file}: no such file")
            ids = [line for line in file.read_text(encoding="utf-8").splitlines() if line]
        found.setdefault(node_type, []).extend(ids)
    return found
