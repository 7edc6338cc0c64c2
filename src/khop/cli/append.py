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
                what = "is a folder" if file.is_dir() else "no such file"
                raise ValueError(
                    f"--delete {word!r}: {file}: {what}; give a text file with an id in each line"
                )
            ids = [line for line in _text(file).splitlines() if line]
        found.setdefault(node_type, []).extend(ids)
    return found


def _text(file: Path) -> str:
    content = file.read_bytes()
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise ValueError(f"--delete: {file}, line {line}: invalid UTF-8; save the file as UTF-8") from None
