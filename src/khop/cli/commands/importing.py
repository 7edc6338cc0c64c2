"""`khop import`: write a graph folder from data of another format."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from khop.cli.arguments import CommandWords
from khop.cli.options import ComponentCommand, values_of_components
from khop.cli.stores import published
from khop.components import ANY_NAMED, Component, Permission
from khop.data.importers import BUILTIN_NAMES, IMPORTERS, NAME, ImportContext
from khop.graph.remote import with_urls
from khop.run.fields import RunField
from khop.run.read import COMMAND_LINE, RawRun, read_toml

KIND = "kind"


Source = Annotated[
    str,
    typer.Argument(
        help="Data to import: a public dataset or a file (ogb:NAME, pyg:, igb:, dgl:, movielens:, relbench:, "
        "edges:), a custom importer (package.module:Class), or SPEC.toml with tables of nodes and edges, "
        "or with the kind and options of an importer.",
        show_default=False,
    ),
]
Guess = Annotated[
    str,
    typer.Option(
        help="Print a proposed spec for these tables without importing them: khop import --guess *.csv > "
        "spec.toml. All rows are read.",
        metavar="FILES...",
        show_default=False,
    ),
]
Encoders = Annotated[
    Path | None,
    typer.Option(
        help="Run or graph folder whose encoders (statistics, vocabularies, categories) encode these tables, "
        "for predictions on new data (default: fit new encoders).",
        metavar="RUN_OR_GRAPH",
        show_default=False,
    ),
]
Memory = Annotated[
    str,
    typer.Option(
        help="Memory for edges during the import, e.g. 4GB, at least 64MB (default: half of free memory).",
        metavar="BYTES",
        show_default=False,
    ),
]


class ImportCommand(ComponentCommand):
    """`khop import`, with the options of the importer that it names."""

    def component_fields(self, words: CommandWords, permission: Permission) -> Iterable[RunField]:
        """Return the fields of the importer's options; without an importer, those of edge lists."""
        from khop.run.check import component_fields

        if any(name == "--guess" for name, _ in words.options):
            edges = component_fields(_loaded(_spec("edges:-"), permission), words.known.keys(), "import")
            return [one for one in edges if one.path == "header"]
        named = any(word in IMPORTERS.kinds() or ":" in word for word in words.operands if not _is_data(word))
        if not named and any(
            is_table_spec(word) or (_is_data(word) and not _has_edges(word)) for word in words.operands
        ):
            return ()
        sources = [word for word in words.operands if _names_importer(word)] or list(words.operands)
        raw = _spec(sources[0]) if sources else RawRun({KIND: next(iter(IMPORTERS.builtin))}, COMMAND_LINE)
        return component_fields(_loaded(raw, permission), words.known.keys(), "import")

    def out(self, args: Sequence[str]) -> Path | None:
        """Return the graph folder to write that the arguments name, or None.

        The files that they name are on this machine. ValueError if no importer reads them, and typer's
        UsageError for wrong options.
        """
        if {"--help", "-h", "--help-all"} & set(args):
            return None
        found = self.make_context("import", [*args]).params
        out: Path | None = found["out"]
        return None if found["guess"] else out


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("import", cls=ImportCommand)(import_graph)


def import_graph(
    context: typer.Context,
    source: Source = "",
    out: Annotated[
        Path | None, typer.Argument(help="Graph folder to write.", show_default="graphs/NAME")
    ] = None,
    more: Annotated[list[str] | None, typer.Argument(hidden=True)] = None,
    guess: Guess = "",
    encoders: Encoders = None,
    memory: Memory = "",
    threads: Annotated[
        int,
        typer.Option(
            help="Threads that read tables; the graph does not depend on their number (0: one per core)."
        ),
    ] = 0,
) -> None:
    """Write a graph folder from tables or from data of another format."""
    if guess.startswith("--"):
        raise ValueError(f"khop import --guess {guess}: --guess takes files; give {guess} after them")
    if guess:
        from khop.cli.importing import print_guess

        header = values_of_components(context).get("header", "auto")
        print_guess([guess, source, *([] if out is None else [str(out)]), *(more or [])], str(header))
        return
    if more or not source:
        problem = f"{more[0]!r} is an unexpected argument" if more else "the data to import are missing"
        raise ValueError(f"khop import: {problem}; give SOURCE and OUT, or --guess with files")
    if is_table_spec(source):
        from khop.cli.importing import run_table_import

        run_table_import(Path(source), out, memory, threads, encoders)
        return
    if encoders is not None:
        raise ValueError(f"--encoders {encoders}: needs a spec of tables, SPEC.toml, not {source!r}")
    raw = _spec(source)
    component = _loaded(raw, ANY_NAMED)
    given = values_of_components(context)
    named = {path: f"--{path.replace('_', '-')}" for path in given}
    written = {name: value for name, value in raw.values.items() if name != KIND}
    from khop.run.check import checked_options

    options = checked_options(replace(raw, values={**written, **given}, options=named), component)
    from khop.cli.terminal import bytes_bar

    folder = Path() if raw.source == COMMAND_LINE else Path(raw.source).parent
    inputs = _context(folder, memory, threads)
    importer = component.build(component.options(**options), inputs)
    target = Path("graphs", importer.name) if out is None else out
    with bytes_bar() as notice:
        size, *notes = importer.write(target, notice).split("\n")
    published(*inputs.further, target)
    if source == raw.values.get(NAME):
        notes.append(f"{source} is read as {raw.values[KIND]}:{source}")
    name = shlex.quote(with_urls(str(target)))
    typer.echo(with_urls("\n".join([f"{target}: {size}. Show it: khop info {name}", *notes])))


def _context(folder: Path, memory: str, threads: int) -> ImportContext:
    from khop.loading.device.device_placement import byte_size
    from khop.process_tuning import allowed_cores

    budget = byte_size(memory, "memory") if memory else None
    return ImportContext(folder, budget, threads or allowed_cores())


def is_table_spec(source: str) -> bool:
    """Return True for a TOML file with tables of nodes."""
    path = Path(source)
    has_tables = path.suffix == ".toml" and path.is_file()
    return has_tables and bool({"nodes", "edges", "edges_from"} & set(read_toml(path).values))


def _is_data(word: str) -> bool:
    return Path(word).suffix != ".toml" and Path(word).is_file()


def _spec(source: str) -> RawRun:
    """Return the kind and the options of an import, from a file or from a kind."""
    if source in BUILTIN_NAMES:
        raise ValueError(
            f"khop import {source}: this graph is built in; train on it with khop train {source}. For other "
            "package lists, use scripts/debian_graph.py from khop's sources"
        )
    if ":" not in source and ("/" in source or Path(source).suffix) and not Path(source).exists():
        raise ValueError(
            f"{source}: no such file; give a file with kind = ..., or write a graph folder in Python with "
            "khop.write_graph (docs/graph-folder.md)"
        )
    if _is_data(source) or (Path(source) / "meta.yaml").is_file():
        kind = "dgl" if Path(source).is_dir() else "edges"
        if kind == "edges" and not _has_edges(source):
            raise ValueError(
                f"{source}: is it a table or an edge list? For a table: khop import --guess {source} > "
                f"tables.toml; for an edge list with the ends in the first two columns: khop import "
                f"edges:{source}"
            )
        return RawRun({KIND: kind, NAME: source}, COMMAND_LINE)
    if Path(source).is_file():
        return read_toml(Path(source))
    kind, separator, name = source.partition(":")
    if separator and kind in IMPORTERS.kinds():
        return RawRun({KIND: kind, NAME: name}, COMMAND_LINE)
    return RawRun({KIND: source}, COMMAND_LINE)


_EDGE_FILES = (
    ".txt", ".edges", ".edgelist", ".el", ".graphml", ".gml", ".gexf", ".net", ".paj", ".pajek", ".mtx",
)  # fmt: skip


def _has_edges(word: str) -> bool:
    return word.lower().removesuffix(".gz").endswith(_EDGE_FILES)


def _names_importer(word: str) -> bool:
    return word in IMPORTERS.kinds() or ":" in word or Path(word).is_file()


def _loaded(raw: RawRun, permission: Permission) -> Component:
    kind = raw.values.get(KIND)
    if kind is None:
        raise ValueError(f"{KIND} is missing: name the importer, {IMPORTERS.allowed()} ({raw.source})")
    try:
        return IMPORTERS.load(str(kind), permission)
    except ValueError as error:
        remedy = "a file with kind = ..., or write a graph folder in Python with khop.write_graph"
        raise ValueError(f"import of {kind!r}: {error}; or give {remedy} ({raw.source})") from error
