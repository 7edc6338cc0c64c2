"""Implementation of `khop import SPEC.toml`, `khop import --guess` and `khop append`."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import typer

from khop.cli.stores import published, stage_tables
from khop.cli.terminal import tell_next
from khop.components import LINK_PREDICTION
from khop.graph.layout import owner_of
from khop.graph.remote import with_urls
from khop.loading.device.device_placement import byte_size
from khop.process_tuning import allowed_cores
from khop.run.read import is_run_folder, saved_run


def print_guess(files: list[str], header: str = "auto") -> None:
    """Print a spec for files of tables."""
    try:
        from khop.data.tables.guess import guess_spec
    except ImportError as error:
        raise ValueError(str(error)) from None
    files = [file for file in files if file]
    typer.echo(with_urls(guess_spec(files, Path(), header)), nl=False)
    guess = ("khop", "import", "--guess", *files, *(["--header", header] if header != "auto" else []))
    tell_next((*guess, ">", "tables.toml"), ("khop", "import", "tables.toml"))


def run_table_import(spec: Path, out: Path | None, memory: str, threads: int, encoders: Path | None) -> None:
    """Write the folder, by default graphs/NAME for NAME.toml, and print its counts."""
    try:
        from khop.data.tables.pipeline import import_tables
    except ImportError as error:
        raise ValueError(str(error)) from None
    from khop.cli.terminal import bytes_bar

    target = Path("graphs", spec.stem) if out is None else out
    stage_tables(spec)
    budget = byte_size(memory, "memory") if memory else None
    with bytes_bar() as notice:
        done = import_tables(
            spec, target, memory=budget, threads=threads or allowed_cores(),
            environment=os.environ, notice=notice, encoders=encoders,
        )  # fmt: skip
    published(target)
    written = shlex.quote(with_urls(str(target)))
    typer.echo(with_urls(f"{done}\nShow it: khop info {written}"))
    if not any(done.nodes.values()):
        typer.echo("The graph has no nodes to train on: the tables are empty, or where selects no rows")
    elif encoders is None:
        typer.echo(f"Train on it: khop init {written} > run.toml && khop train run.toml")
    elif is_run_folder(encoders):
        _tell_predictions(spec, target, encoders)


def _tell_predictions(spec: Path, later: Path, run: Path) -> None:
    """Print the command that uses later data: khop predict for nodes, khop append for links."""
    config = saved_run(run, (), lambda problem: None)
    task = config.values.get("task")
    if isinstance(task, dict) and task.get("kind") == LINK_PREDICTION:
        trained = str(config.values["graph"])
        graph, folder = shlex.quote(str(owner_of(Path(trained)) or trained)), shlex.quote(str(run))
        file = shlex.quote(str(spec))
        typer.echo(f"Recommend for them: khop append {graph} {file} && khop recommend {folder} --user ID")
    else:
        folder, graph = (shlex.quote(with_urls(str(path))) for path in (run, later))
        typer.echo(f"Predict them: khop predict {folder} --graph {graph}")


def run_append(
    graph: Path, spec: Path | None, delete: list[str], split: str, memory: str, threads: int
) -> None:
    """Append a spec or delete nodes, and print the counts."""
    try:
        from khop.data.tables.append import append
    except ImportError as error:
        raise ValueError(str(error)) from None
    from khop.cli.terminal import bytes_bar

    with bytes_bar() as notice:
        done = append(
            graph, spec, delete=ids_by_type(delete) or None, split=split,
            memory=byte_size(memory, "memory") if memory else None,
            threads=threads or allowed_cores(), environment=os.environ, notice=notice,
        )  # fmt: skip
    typer.echo(f"{graph}: {done}\nShow it: khop info {shlex.quote(str(graph))}")


def ids_by_type(words: list[str]) -> dict[str, list[str]]:
    """Return the ids in `TYPE=ID` and `TYPE=@FILE` by node type."""
    found: dict[str, list[str]] = {}
    for word in words:
        node_type, equals, id_ = word.partition("=")
        if not equals or not node_type or not id_:
            raise ValueError(
                f"--delete {word!r}: give a node type and an id, such as user=u-4711 or user=@ids.txt"
            )
        ids = [id_]
        if id_.startswith("@"):
            file = Path(id_[1:])
            if not file.is_file():
                what = "is a folder" if file.is_dir() else "no such file"
                raise ValueError(f"--delete {word!r}: {file}: {what}; give a text file with one id per line")
            ids = [id_ for line in _text(file).split("\n") if (id_ := line.strip(" \t\r"))]
        found.setdefault(node_type, []).extend(ids)
    return found


def _text(file: Path) -> str:
    content = file.read_bytes()
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise ValueError(f"--delete: {file}, line {line}: invalid UTF-8; save the file as UTF-8") from None
