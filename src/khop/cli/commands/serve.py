"""`khop serve` and `khop servers`: start servers of batches, and query their status."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from khop.cli.arguments import GraphArgument, Report, folder_of
from khop.cli.commands.shared import ClientOptions, SecurityOptions, ServeOptions, TokenRole, _option
from khop.cli.options import takes_groups

Addresses = Annotated[
    str, typer.Argument(help="Address of a server, HOST:PORT or HOST:FIRST-LAST.", show_default=False)
]
TokenGraphs = Annotated[
    list[str] | None,
    _option("--graph", "NAME", "Graph that the token may read; can be repeated (default: all)."),
]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("serve")(takes_groups(serve))
    servers = typer.Typer(help="Look at servers, and make tokens for them.", no_args_is_help=True)
    servers.command("status")(takes_groups(status))
    servers.command("token")(token)
    app.add_typer(servers, name="servers")


def serve(
    graph: GraphArgument,
    listen: Annotated[
        str,
        typer.Option("--listen", metavar="HOST:PORT", help="The one address to listen on."),
    ] = "127.0.0.1:7311",
    *,
    security: SecurityOptions,
    options: ServeOptions,
) -> None:
    """Hold a graph and make batches for trainers on other machines.

    SIGTERM ends the server after the batches that it has begun. Other machines reach it only with a
    certificate and tokens. With --part, it holds one part of a partitioned graph, and asks the servers of the
    other parts for the rest of each batch.
    """
    folder = folder_of(graph)
    from khop.cli.serve import serve as work

    work(folder, listen, security, options)


def status(
    address: Addresses,
    *,
    access: ClientOptions,
    report: Report,
) -> None:
    """Show requests, batches in the making, bytes, memory and graph of servers."""
    from khop.cli.serve import print_status

    print_status(address, access, report.as_json)


def token(
    file: Annotated[Path, typer.Argument(help="Token file to write.", show_default=False)],
    graph: TokenGraphs = None,
    role: Annotated[
        TokenRole, typer.Option("--role", help="client: batches; server: also hops and rows of parts.")
    ] = TokenRole.CLIENT,
) -> None:
    """Write a file with a new random token, readable by its owner alone."""
    from khop.servers.access import Role, write_token

    write_token(file, graph or ["*"], Role(role.value))
    typer.echo(f"{file}: give it to one client, and to the servers as --token-file")
