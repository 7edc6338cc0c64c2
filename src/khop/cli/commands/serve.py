"""`khop serve` and `khop servers`: servers of batches."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from khop.cli.graph_argument import GraphArgument, Report, folder_of
from khop.cli.option_groups import takes_groups


class TokenRole(StrEnum):
    """Requests that a token allows."""

    CLIENT = "client"
    SERVER = "server"


def _option(name: str, metavar: str, words: str) -> Any:  # noqa: ANN401  # typer's class for it is private
    return typer.Option(name, metavar=metavar, help=words, show_default=False)


Insecure = Annotated[
    bool,
    typer.Option("--insecure", help="Allow an unencrypted network: tokens can be read on their way."),
]


Addresses = Annotated[
    str, typer.Argument(help="Address of a server, HOST:PORT or HOST:FIRST-LAST.", show_default=False)
]
TokenGraphs = Annotated[
    list[str] | None,
    _option("--graph", "NAME", "Graph that the token may read; can be repeated (default: all)."),
]


@dataclass(frozen=True)
class SecurityOptions:
    """Options of a server for tokens and certificates."""

    token_file: Annotated[
        list[Path] | None,
        _option(
            "--token-file", "FILE", "Token file of a client, mode 0600; can be repeated, once per client."
        ),
    ] = None
    tls_cert: Annotated[Path | None, _option("--tls-cert", "FILE", "Certificate of the server, PEM.")] = None
    tls_key: Annotated[Path | None, _option("--tls-key", "FILE", "Key of the certificate, PEM.")] = None
    client_ca: Annotated[
        Path | None,
        _option("--client-ca", "FILE", "Authority of certificates that clients must have (default: none)."),
    ] = None
    insecure: Insecure = False


@dataclass(frozen=True)
class ServeOptions:
    """Options of a server for its work."""

    procs: Annotated[
        int, _option("--procs", "INT", "Server processes, on consecutive ports (default 1).")
    ] = 1
    on_ray: Annotated[
        int | None,
        _option("--on-ray", "INT", "Servers that Ray places, supervises and restarts (default: none)."),
    ] = None
    at_once: Annotated[
        int | None, _option("--at-once", "INT", "Batches made at the same time (default: one per core).")
    ] = None
    max_batch_bytes: Annotated[
        str | None,
        _option(
            "--max-batch-bytes", "SIZE", "Largest batch, e.g. 2GiB; larger are refused (default: no limit)."
        ),
    ] = None
    view_bytes: Annotated[
        str | None,
        _option(
            "--view-bytes",
            "SIZE",
            "Memory for splits and other views of the graph, e.g. 8GiB (default: a quarter of the memory).",
        ),
    ] = None
    max_rate: Annotated[
        float, _option("--max-rate", "NUMBER", "Requests per second of one token (default 1000).")
    ] = 1000.0
    module: Annotated[
        list[Path] | None,
        _option(
            "--module", "FILE", "Python file with samplers and rules for requests to name; can be repeated."
        ),
    ] = None
    exit_idle: Annotated[
        float | None,
        _option("--exit-idle", "SECONDS", "End after this time without a request (default: never)."),
    ] = None
    metrics: Annotated[
        str | None,
        _option(
            "--metrics", "ADDRESS", "HOST:PORT of metrics for Prometheus, or a loopback PORT (default: none)."
        ),
    ] = None
    part: Annotated[
        int | None,
        _option(
            "--part", "INT", "Part of a partitioned graph to hold, from 0; needs --owners (default: all)."
        ),
    ] = None
    owners: Annotated[
        Path | None,
        _option("--owners", "FILE", "TOML file with the addresses of the servers of each part."),
    ] = None
    cache_bytes: Annotated[
        str,
        _option("--cache-bytes", "SIZE", "Memory for rows of other parts, e.g. 2GiB (default 0: no cache)."),
    ] = "0"


@dataclass(frozen=True)
class ClientOptions:
    """Options of a client for tokens and certificates."""

    token_file: Annotated[Path | None, _option("--token-file", "FILE", "Token file, mode 0600.")] = None
    ca: Annotated[
        Path | None,
        _option(
            "--ca", "FILE", "Authority of the server's certificate, PEM (default: those of the machine)."
        ),
    ] = None
    client_cert: Annotated[
        Path | None, _option("--client-cert", "FILE", "Certificate of the client, PEM.")
    ] = None
    client_key: Annotated[
        Path | None, _option("--client-key", "FILE", "Key of the client's certificate, PEM.")
    ] = None
    insecure: Insecure = False


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
