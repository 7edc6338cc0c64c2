"""Implementation of `khop serve` and `khop servers status`."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import FrameType

from rich.table import Table

from khop.cli.commands.shared import ClientOptions, SecurityOptions, ServeOptions
from khop.cli.server_process import ANY_HOST, SUPERVISOR, ServeRequest, _flight, run_server, say
from khop.cli.terminal import say_next, table_console, tell_next
from khop.errors import PeerLost
from khop.loading.device.device_placement import byte_size
from khop.process_tuning import places_of_ranks, usable_cores
from khop.servers.access import (
    Access,
    Address,
    Encryption,
    Endpoint,
    Role,
    ServerSecurity,
    is_loopback,
    parsed_address,
    parsed_addresses,
    resolved,
    token_of,
)
from khop.servers.connections import Dial
from khop.servers.errors import Busy, ServerError
from khop.servers.main_loop import Life, supervise
from khop.servers.views import default_view_bytes

_ASK_S = 5.0


def serve(folder: Path, listen: str, security: SecurityOptions, options: ServeOptions) -> None:
    """Serve a graph folder until a signal, or until the server is idle."""
    address, metrics = parsed_address(listen), _metrics_address(options.metrics)
    _check(options, address)
    _flight("flight_server")
    request = ServeRequest(folder, address, metrics, _security(security), options)
    request.security.check([endpoint.number for endpoint in resolved(address)])
    _check_metrics(metrics, request.security)
    _check_part(options, request.security)
    if options.on_ray is not None:
        if not _serve_on_ray(request, options.on_ray):
            raise SystemExit(1)
        return
    with _stop_on_signals() as stop:
        if options.procs > 1:
            ports = f"{address.port}-{address.port + options.procs - 1}"
            say(f"{options.procs} servers on {address.host}:{ports}")
            commands = [
                _command(folder, each.listen, each.metrics, security, options)
                for each in map(request.later, range(options.procs))
            ]
            places = places_of_ranks(options.procs, None if options.bind is None else options.bind.value)
            for number, place in enumerate(places):
                say(f"server {number} is bound to {place}")
            starts = [place.inherited for place in places]
            os.environ[SUPERVISOR] = str(os.getpid())
            if not supervise(commands, Life(options.exit_idle), stop, say, starts):
                raise SystemExit(1)
        elif not run_server(request, stop, _print_address):
            os._exit(1)  # gRPC would wait for clients that no longer read


def _print_address(graph: str, address: Address) -> None:
    print(f"serving {graph} on {address}", flush=True)
    tell_next(("khop", "train", "run.toml", "--servers", str(address)))


def _serve_on_ray(request: ServeRequest, count: int) -> bool:
    os.environ.setdefault("RAY_DEDUP_LOGS", "0")  # each server has a line per minute
    try:
        from khop.cli.serve_on_ray import serve_on_ray
    except ModuleNotFoundError as error:
        if error.name != "ray":
            raise
        raise ValueError("--on-ray needs Ray: pip install ray") from None
    options = replace(request.options, module=[path.absolute() for path in request.options.module or ()])
    here = replace(
        request, folder=request.folder.absolute(), security=request.security.absolute(), options=options
    )
    return serve_on_ray([here.later(number) for number in range(count)], _stop_on_signals)


def _check(options: ServeOptions, address: Address) -> None:
    if options.procs < 1:
        raise ValueError(f"--procs {options.procs}: must be at least 1")
    if options.procs > 1 and address.port == 0:
        raise ValueError("--procs: needs a port in --listen, the first of consecutive ones")
    if options.on_ray is not None:
        _check_on_ray(options.on_ray, options, address)
    if options.exit_idle is not None and not options.exit_idle > 0:
        raise ValueError(f"--exit-idle {options.exit_idle:g}: must be above 0 seconds")
    if (options.part is None) != (options.owners is None):
        raise ValueError("--part and --owners must be given together; omit both to serve a whole graph")
    _check_cache(options)


def _check_cache(options: ServeOptions) -> None:
    if byte_size(options.cache_bytes, "--cache-bytes") and options.part is None:
        raise ValueError(
            f"--cache-bytes {options.cache_bytes}: caches rows of other parts, and this server has the whole "
            "graph; leave it out, or give --part and --owners"
        )


def _check_on_ray(count: int, options: ServeOptions, address: Address) -> None:
    if count < 1:
        raise ValueError(f"--on-ray {count}: must be at least 1")
    if options.procs > 1:
        raise ValueError(f"--on-ray {count}: excludes --procs; Ray starts all {count} servers")
    if options.bind is not None:
        raise ValueError("--on-ray: excludes --bind, as Ray gives each server its cores")
    if options.part is not None:
        raise ValueError(
            "--on-ray: excludes --part, because Ray chooses the machines; start servers of parts without Ray"
        )
    if address.port == 0:
        raise ValueError("--on-ray: needs a port in --listen, so that a restarted server has the same port")
    if address.host not in ANY_HOST and not all(is_loopback(each.number) for each in resolved(address)):
        raise ValueError(
            f"--on-ray: --listen {address.host} is the address of one machine, and Ray chooses the machines; "
            "listen on 0.0.0.0:PORT, for the address of each machine in the cluster, or on 127.0.0.1:PORT"
        )


def _metrics_address(text: str | None) -> Address | None:
    if text is None:
        return None
    return parsed_address(f"127.0.0.1:{text}" if text.isdecimal() else text)


def _check_metrics(metrics: Address | None, security: ServerSecurity) -> None:
    """Raise ValueError if other machines could read the metrics without --insecure."""
    if metrics is None or security.insecure or all(is_loopback(each.number) for each in resolved(metrics)):
        return
    raise ValueError(
        f"--metrics {metrics}: other machines reach this address, and metrics have neither encryption nor a "
        "token; give a port alone, which listens on 127.0.0.1, or --insecure in a network that you trust"
    )


def _check_part(options: ServeOptions, security: ServerSecurity) -> None:
    """Raise ValueError if other servers could not request data of this part."""
    if options.part is None:
        return
    if not any(token_of(path).role is Role.SERVER for path in security.token_files):
        raise ValueError(
            f"--part {options.part}: other servers request hops and rows with a token of the role `server`; "
            "write one with `khop servers token FILE --role server`, and give it as --token-file"
        )


def _security(options: SecurityOptions) -> ServerSecurity:
    return ServerSecurity(
        tuple(options.token_file or ()),
        options.tls_cert,
        options.tls_key,
        options.client_ca,
        options.insecure,
    )


def _command(
    folder: Path, address: Address, metrics: Address | None, security: SecurityOptions, options: ServeOptions
) -> list[str]:
    """Return the command of one of several servers."""
    given: list[tuple[str, object]] = [
        ("--listen", address),
        *(("--token-file", path) for path in security.token_file or ()),
        ("--tls-cert", security.tls_cert),
        ("--tls-key", security.tls_key),
        ("--client-ca", security.client_ca),
        ("--at-once", options.at_once or max(1, usable_cores() // options.procs)),
        ("--max-batch-bytes", options.max_batch_bytes),
        ("--view-bytes", options.view_bytes or default_view_bytes() // options.procs),
        *(("--module", path) for path in options.module or ()),
        ("--exit-idle", options.exit_idle),
        ("--metrics", metrics),
        ("--part", options.part),
        ("--owners", options.owners),
        ("--cache-bytes", None if options.part is None else options.cache_bytes),
    ]
    words = [word for name, value in given if value is not None for word in (name, str(value))]
    return [sys.executable, "-m", "khop", "serve", str(folder), *words, *["--insecure"] * security.insecure]


@contextmanager
def _stop_on_signals() -> Iterator[threading.Event]:
    """Yield an event that is set by the first SIGTERM or Ctrl-C. A second Ctrl-C ends the process."""
    stop = threading.Event()

    def ask(number: int, frame: FrameType | None) -> None:
        if stop.is_set() and number == signal.SIGINT:
            raise KeyboardInterrupt
        stop.set()

    before = {number: signal.signal(number, ask) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def print_status(text: str, options: ClientOptions, as_json: bool) -> None:
    """Print the counters of servers, as a table or as one JSON object by address."""
    encryption: Encryption = "off" if options.insecure else "remote"
    access = Access(options.token_file, options.ca, options.client_cert, options.client_key, encryption)
    dial: Dial = _flight("flight_client").flight_dial(access)
    found: dict[str, dict[str, object]] = {}
    for address in parsed_addresses([text]):
        found |= _statuses(dial, address)
    if as_json:
        print(json.dumps(found))
        return
    table = Table(title="servers", title_justify="left")
    table.add_column("")
    for machine in found:
        table.add_column(machine, justify="right")
    for name in dict.fromkeys(name for status in found.values() for name in status):
        table.add_row(
            name.replace("_", " "), *(_shown(name, status.get(name, "")) for status in found.values())
        )
    table_console().print(table)
    say_next(table_console(), ("khop", "train", "run.toml", "--servers", text))


def _shown(name: str, value: object) -> str:
    """Format a counter. Identities (process, graph) get no thousands separators."""
    if name == "fingerprint":
        return str(value)[:12]
    is_count = isinstance(value, int | float) and not isinstance(value, bool) and name != "pid"
    return f"{value:,}" if is_count else str(value)


def _statuses(dial: Dial, address: Address) -> dict[str, dict[str, object]]:
    """Return the counters of all machines that an address resolves to, by machine.

    If at least one machine answers, those that do not have an error instead.
    """
    found: dict[str, dict[str, object]] = {}
    failed: dict[str, Exception] = {}
    try:
        endpoints = dial.resolve(address)
    except ServerError as error:
        raise _for_users(error, address) from None
    for endpoint in endpoints:
        name = str(endpoint if len(endpoints) > 1 else address)
        try:
            found[name] = _status(dial, endpoint)
        except ServerError as error:
            failed[name] = _for_users(error, address)
            found[name] = {"error": str(error)}
    if len(failed) == len(endpoints):
        raise next(iter(failed.values()))
    return found


def _status(dial: Dial, endpoint: Endpoint) -> dict[str, object]:
    connection = dial.connect(endpoint, _ASK_S)
    try:
        found: dict[str, object] = json.loads(connection.status(_ASK_S))
        return found
    finally:
        connection.close()


def _for_users(error: ServerError, address: Address) -> Exception:
    """Add a remedy to the error of a server that does not answer."""
    if isinstance(error, ValueError | OSError):
        return error
    if isinstance(error, Busy):
        return PeerLost(f"{address}: {error}")
    return PeerLost(f"{error}; is a server running there? (khop serve GRAPH --listen {address})")
