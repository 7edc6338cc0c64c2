"""Arguments and options that several commands share."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer


class TokenRole(StrEnum):
    """Requests that a token allows."""

    CLIENT = "client"
    SERVER = "server"


def _option(name: str, metavar: str, words: str) -> Any:  # noqa: ANN401  # typer's class for it is private
    return typer.Option(name, metavar=metavar, help=words, show_default=False)


Insecure = Annotated[
    bool,
    typer.Option("--insecure", help="Allow unencrypted connections, on which tokens can be intercepted."),
]


class BindChoice(StrEnum):
    """Cores and memory nodes of processes."""

    NONE = "none"
    CORES = "cores"
    NUMA = "numa"


BindOption = Annotated[
    BindChoice | None,
    typer.Option(
        "--bind",
        help="How processes are bound to cores: separate cores for each process (cores), separate cores on "
        "one NUMA node (numa), or no binding (none). Default: numa on machines with several NUMA nodes, else "
        "none.",
        show_default=False,
    ),
]


@dataclass(frozen=True)
class SecurityOptions:
    """Options of a server for tokens and certificates."""

    token_file: Annotated[
        list[Path] | None,
        _option("--token-file", "FILE", "Token file of a client, mode 0600; can be repeated."),
    ] = None
    tls_cert: Annotated[Path | None, _option("--tls-cert", "FILE", "Certificate of the server, PEM.")] = None
    tls_key: Annotated[Path | None, _option("--tls-key", "FILE", "Private key of the certificate, PEM.")] = (
        None
    )
    client_ca: Annotated[
        Path | None,
        _option("--client-ca", "FILE", "CA of the certificates that clients must present (default: none)."),
    ] = None
    insecure: Insecure = False


@dataclass(frozen=True)
class ServeOptions:
    """Options of a server for batches, processes and memory."""

    procs: Annotated[
        int, _option("--procs", "INT", "Number of server processes, on consecutive ports (default 1).")
    ] = 1
    on_ray: Annotated[
        int | None,
        _option(
            "--on-ray", "INT", "Number of servers that Ray places, supervises and restarts (default: none)."
        ),
    ] = None
    at_once: Annotated[
        int | None,
        _option("--at-once", "INT", "Number of batches made concurrently (default: one per core)."),
    ] = None
    max_batch_bytes: Annotated[
        str | None,
        _option("--max-batch-bytes", "SIZE", "Maximum size of a batch, e.g. 2GiB (default: no limit)."),
    ] = None
    view_bytes: Annotated[
        str | None,
        _option(
            "--view-bytes",
            "SIZE",
            "Memory for subsets of the graph that clients request, such as splits, e.g. 8GiB (default: a "
            "quarter of the memory).",
        ),
    ] = None
    module: Annotated[
        list[Path] | None,
        _option(
            "--module", "FILE", "Python file with samplers and rules that requests may name; can be repeated."
        ),
    ] = None
    exit_idle: Annotated[
        float | None,
        _option(
            "--exit-idle",
            "SECONDS",
            "Seconds without a request after which the server exits (default: never).",
        ),
    ] = None
    metrics: Annotated[
        str | None,
        _option(
            "--metrics",
            "ADDRESS",
            "Address of metrics for Prometheus: HOST:PORT, or a PORT on loopback (default: none).",
        ),
    ] = None
    part: Annotated[
        int | None,
        _option(
            "--part", "INT", "Part of a partitioned graph to serve, from 0; needs --owners (default: all)."
        ),
    ] = None
    owners: Annotated[
        Path | None,
        _option("--owners", "FILE", "TOML file with the addresses of the servers of each part."),
    ] = None
    bind: BindOption = None
    cache_bytes: Annotated[
        str,
        _option(
            "--cache-bytes", "SIZE", "Memory to cache rows of other parts, e.g. 2GiB (default 0: no cache)."
        ),
    ] = "0"


@dataclass(frozen=True)
class ClientOptions:
    """Options of a client for tokens and certificates."""

    token_file: Annotated[Path | None, _option("--token-file", "FILE", "Token file, mode 0600.")] = None
    ca: Annotated[
        Path | None,
        _option("--ca", "FILE", "CA of the server's certificate, PEM (default: those of the system)."),
    ] = None
    client_cert: Annotated[Path | None, _option("--client-cert", "FILE", "Client certificate, PEM.")] = None
    client_key: Annotated[
        Path | None, _option("--client-key", "FILE", "Private key of the client certificate, PEM.")
    ] = None
    insecure: Insecure = False


class Values(StrEnum):
    """Values to write for each node."""

    EMBEDDINGS = "embeddings"
    OUTPUTS = "outputs"


class CheckpointChoice(StrEnum):
    """Checkpoint of a run: the best or the last."""

    BEST = "best"
    LAST = "last"


RunFolder = Annotated[Path, typer.Argument(metavar="RUN_FOLDER", help="Run folder, written by khop train.")]
JsonLast = Annotated[
    bool,
    typer.Option("--json", help="Print one JSON object to stdout at the end; other output goes to stderr."),
]
Procs = Annotated[
    int | None,
    typer.Option(
        "--procs",
        metavar="INT",
        help="Processes on this machine (default 1); on several machines use torchrun ... -m khop.",
        show_default=False,
    ),
]
Oversubscribe = Annotated[bool, typer.Option("--oversubscribe", help="Allow more than 4 processes per core.")]


AllowCode = Annotated[
    list[str] | None,
    typer.Option(
        "--allow-code",
        metavar="PACKAGE",
        help="Package from which the run may import code that its run folder names; can be repeated "
        "(default: none).",
        show_default=False,
    ),
]
Baselines = Annotated[
    bool,
    typer.Option(
        "--baselines",
        help="Also train a model on node features only, without edges, and show its scores.",
    ),
]


@dataclass(frozen=True)
class RankOptions:
    """Options of a command that runs on one or several ranks."""

    procs: Procs = None
    oversubscribe: Oversubscribe = False
    bind: BindOption = None


@dataclass(frozen=True)
class RankReport:
    """Output option of a command that runs on one or several ranks."""

    as_json: JsonLast = False
