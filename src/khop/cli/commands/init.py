"""`khop init`: propose a run file for a graph."""

from __future__ import annotations

import typer

from khop.cli.arguments import GraphArgument, folder_of


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("init")(init)


def init(graph: GraphArgument) -> None:
    """Print a commented run file for a graph, with its labels or links, splits and features.

    Write it to a file, khop init GRAPH > run.toml, and train it: khop train run.toml.
    """
    from khop.cli.terminal import tell_next
    from khop.graph.remote import with_urls
    from khop.run.proposed_run import proposed_run

    typer.echo(with_urls(proposed_run(folder_of(graph))), nl=False)
    tell_next(("khop", "init", str(graph), ">", "run.toml"), ("khop", "train", "run.toml"))
