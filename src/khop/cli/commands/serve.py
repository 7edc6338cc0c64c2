"""`khop serve` and `khop servers`: start batch servers, and query their status."""

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
    servers = typer.Typer(help="Show the status of servers, and create tokens.", no_args_is_help=True)
    servers.command("status")(takes_groups(status))
    servers.command("token")(token)
    app.add_typer(servers, name="servers")


def serve(
    graph: GraphArgument,
    listen: Annotated[
        str,
        typer.Option("--listen", metavar="HOST:PORT", help="Address to listen on."),
    ] = "127.0.0.1:7311",
    *,
    security: SecurityOptions,
    options: ServeOptions,
) -> None:
    """Serve batches of a graph to trainers on other machines.

    SIGTERM is a graceful shutdown: the server finishes the batches in progress and exits. A server that other
    machines can reach requires a certificate and tokens. With --part, it serves one part of a partitioned
    graph, and requests the rest of each batch from the servers of the other parts.
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
    """Show requests, batches in progress, bytes, memory and graph of servers."""
    from khop.cli.serve import print_status

    print_status(address, access, report.as_json)


def token(
    file: Annotated[Path, typer.Argument(help="Token file to write.", show_default=False)],
    graph: TokenGraphs = None,
    role: Annotated[
        TokenRole,
        typer.Option("--role", help="Requests that the token allows: of clients, or also of servers."),
    ] = TokenRole.CLIENT,
) -> None:
    """Write a new random token to a file that only its owner can read."""
    from khop.servers.access import Role, write_token

    write_token(file, graph or ["*"], Role(role.value))
    typer.echo(f"{file}: pass it to one client, and to the servers as --token-file")
