"""The work of `khop serve` and `khop servers status`."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib import import_module
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import FrameType, ModuleType

from rich.table import Table

from khop.cli.commands.serve import ClientOptions, SecurityOptions, ServeOptions
from khop.cli.next_steps import say_next, tell_next
from khop.cli.terminal import table_console
from khop.errors import PeerLost
from khop.loading.byte_size import byte_size
from khop.loading.cores import usable_cores
from khop.servers.access import Access, Encryption, Role, ServerSecurity, token_of
from khop.servers.addresses import (
    Address,
    Endpoint,
    is_loopback,
    parsed_address,
    parsed_addresses,
    resolved,
)
from khop.servers.connections import Dial
from khop.servers.errors import Busy, ServerError
from khop.servers.fair_queue import QueueLimits
from khop.servers.kept_views import default_view_bytes
from khop.servers.metrics import metrics_on
from khop.servers.parts.owners import read_owners
from khop.servers.request_handler import RequestHandler, Serves
from khop.servers.serving import Life, serve_until, supervise

_ASK_S = 5.0
ANY_HOST = ("0.0.0.0", "::")


@dataclass(frozen=True)
class ServeRequest:
    """A graph folder, the addresses of its server, and its options."""

    folder: Path
    listen: Address
    metrics: Address | None
    security: ServerSecurity
    options: ServeOptions

    def later(self, number: int) -> ServeRequest:
        """Return the request of the server `number` ports further."""
        return replace(
            self, listen=_later(self.listen, number), metrics=self.metrics and _later(self.metrics, number)
        )


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
            if not supervise(commands, Life(options.exit_idle), stop, say):
                raise SystemExit(1)
        elif not run_server(request, stop, _print_address):
            os._exit(1)  # gRPC would wait for clients that no longer read


def _print_address(graph: str, address: Address) -> None:
    print(f"serving {graph} on {address}", flush=True)
    tell_next(("khop", "train", "run.toml", "--servers", str(address)))


def run_server(request: ServeRequest, stop: threading.Event, began: Callable[[str, Address], None]) -> bool:
    """Serve until `stop` is set or the server is idle. `began` is called once with graph and address.

    Return whether all that was begun has been finished; if not, connections are still open.
    """
    options = request.options
    flight_server = _flight("flight_server")
    limits = QueueLimits(at_once=options.at_once or usable_cores())
    handler = RequestHandler(_service(request.folder, options), limits, options.max_rate)
    server = flight_server.served(handler, request.listen, request.security)
    with metrics_on(request.metrics, handler.status) as metrics_port:
        if request.metrics is not None:
            say(f"metrics on http://{request.metrics.host}:{metrics_port}/metrics")
        began(str(handler.status()["graph"]), Address(request.listen.host, server.port))
        ended = serve_until(handler, Life(options.exit_idle), stop, say)
    if ended:
        server.shutdown()
    return ended


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
    if not options.max_rate > 0:
        raise ValueError(f"--max-rate {options.max_rate:g}: must be above 0 requests per second")
    if options.on_ray is not None:
        _check_on_ray(options.on_ray, options, address)
    if options.exit_idle is not None and not options.exit_idle > 0:
        raise ValueError(f"--exit-idle {options.exit_idle:g}: must be above 0 seconds")
    if (options.part is None) != (options.owners is None):
        raise ValueError("--part and --owners: one needs the other; give both, or neither for a whole graph")
    _check_cache(options)


def _check_cache(options: ServeOptions) -> None:
    if byte_size(options.cache_bytes, "--cache-bytes") and options.part is None:
        raise ValueError(
            f"--cache-bytes {options.cache_bytes}: is memory for rows of other parts, and a whole graph has "
            "none; leave it out, or give --part and --owners"
        )


def _check_on_ray(count: int, options: ServeOptions, address: Address) -> None:
    if count < 1:
        raise ValueError(f"--on-ray {count}: must be at least 1")
    if options.procs > 1:
        raise ValueError(f"--on-ray {count}: excludes --procs; Ray starts all {count} servers")
    if options.part is not None:
        raise ValueError(
            "--on-ray: excludes --part, as Ray chooses the machines; start servers of parts by hand"
        )
    if address.port == 0:
        raise ValueError("--on-ray: needs a port in --listen, so that a server comes back on its own port")
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
    """Raise ValueError if other machines would read the metrics without --insecure."""
    if metrics is None or security.insecure or all(is_loopback(each.number) for each in resolved(metrics)):
        return
    raise ValueError(
        f"--metrics {metrics}: other machines reach this address, and metrics have neither encryption nor a "
        "token; give a port alone, which listens on 127.0.0.1, or --insecure in a network that you trust"
    )


def _later(address: Address, number: int) -> Address:
    return Address(address.host, address.port + number)


def _service(folder: Path, options: ServeOptions) -> Serves:
    limit = options.max_batch_bytes
    most = None if limit is None else byte_size(limit, "--max-batch-bytes", least=1)
    views = None if options.view_bytes is None else byte_size(options.view_bytes, "--view-bytes", least=1)
    modules = [_loaded(path) for path in options.module or ()]
    if options.part is not None and options.owners is not None:
        from khop.api.serve_part import part_service_of

        cache = byte_size(options.cache_bytes, "--cache-bytes")
        owners = read_owners(options.owners)
        return part_service_of(folder, options.part, owners, modules, most, cache, views)
    from khop.api.serve import service_of

    return service_of(folder, modules, most, views)


def _check_part(options: ServeOptions, security: ServerSecurity) -> None:
    """Raise ValueError if no other server could ask this one about its part."""
    if options.part is None:
        return
    if not any(token_of(path).role is Role.SERVER for path in security.token_files):
        raise ValueError(
            f"--part {options.part}: other servers ask for hops and rows by a token with the role `server`; "
            "write one by `khop servers token FILE --role server`, and give it as --token-file"
        )


def _loaded(path: Path) -> ModuleType:
    """Import the file of a --module option, which this command alone names.

    ValueError if the name of its module is that of another one, which it would replace for all importers.
    """
    spec = spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise ValueError(f"--module {path}: is no Python file")
    other = _origin(path.stem)
    if other is not None and not (Path(other).is_file() and path.samefile(other)):
        raise ValueError(
            f"--module {path}: {path.stem} is another module already ({other}); rename the file, here and "
            "where clients import it"
        )
    module = module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def _origin(name: str) -> str | None:
    """Return where the module of a name comes from; None if there is none."""
    try:
        spec = find_spec(name)
    except ValueError:  # a module of this process without a spec
        return "of this process"
    return None if spec is None else spec.origin or "a package"


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
        ("--max-rate", options.max_rate),
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
    """Provide an event that the first SIGTERM or Ctrl-C sets. The second Ctrl-C ends the process."""
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


def _flight(name: str) -> ModuleType:
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # its failures reach the log as errors of requests
    try:
        return import_module(f"khop.servers.{name}")
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "pyarrow":
            raise
        raise ValueError("servers need pyarrow, for Arrow Flight: pip install pyarrow") from None


def say(line: str) -> None:
    """Print a line to stderr, with the time."""
    print(f"{time.strftime('%H:%M:%S')} {line}", file=sys.stderr, flush=True)


def print_status(text: str, options: ClientOptions, as_json: bool) -> None:
    """Print the counters of servers, as a table or as one JSON object by address."""
    encryption: Encryption = "off" if options.insecure else "remote"
    access = Access(options.token_file, options.ca, options.client_cert, options.client_key, encryption)
    dial: Dial = _flight("flight_client").FlightDial(access)
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
    """Return a counter as text. An identity (process, graph) is copied, so it has no separators."""
    if name == "fingerprint":
        return str(value)[:12]
    is_count = isinstance(value, int | float) and not isinstance(value, bool) and name != "pid"
    return f"{value:,}" if is_count else str(value)


def _statuses(dial: Dial, address: Address) -> dict[str, dict[str, object]]:
    """Return the counters of all machines behind an address, by machine.

    A machine that does not answer has its error instead, if another one of the name answers.
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
    """Return the error with a remedy, for a server that does not answer."""
    if isinstance(error, ValueError | OSError):
        return error
    if isinstance(error, Busy):
        return PeerLost(f"{address}: {error}")
    return PeerLost(f"{error}; is a server running there? (khop serve GRAPH --listen {address})")
