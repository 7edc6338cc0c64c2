"""The work of `khop serve` and `khop servers status`."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import FrameType, ModuleType

from rich.table import Table

from khop.cli.commands.serve import ClientOptions, SecurityOptions, ServeOptions
from khop.cli.terminal import table_console
from khop.errors import PeerLost
from khop.loading.byte_size import byte_size
from khop.loading.cores import usable_cores
from khop.servers.access import Access, ServerSecurity
from khop.servers.addresses import Address, parsed_address, parsed_addresses, resolved
from khop.servers.errors import ServerError
from khop.servers.fair_queue import QueueLimits
from khop.servers.metrics import metrics_on
from khop.servers.request_handler import RequestHandler, Serves
from khop.servers.serving import Life, serve_until, supervise

_ASK_S = 5.0


def serve(folder: Path, listen: str, security: SecurityOptions, options: ServeOptions) -> None:
    """Serve a graph folder until a signal, or until the server is idle."""
    address, metrics = parsed_address(listen), _metrics_address(options.metrics)
    _check(options, address)
    flight_server = _flight("flight_server")
    checked = _security(security)
    checked.check([endpoint.number for endpoint in resolved(address)])
    life = Life(options.exit_idle)
    stop = _stop_on_signals()
    if options.procs > 1:
        _say(f"{options.procs} servers on {address.host}:{address.port}-{address.port + options.procs - 1}")
        commands = [
            _command(folder, _later(address, n), metrics and _later(metrics, n), security, options)
            for n in range(options.procs)
        ]
        supervise(commands, life, stop, _say)
        return
    handler = RequestHandler(
        _service(folder, options), QueueLimits(at_once=options.at_once or usable_cores())
    )
    server = flight_server.served(handler, address, checked)
    with metrics_on(metrics, handler.status) as metrics_port:
        if metrics is not None:
            _say(f"metrics on http://{metrics.host}:{metrics_port}/metrics")
        print(f"serving {handler.status()['graph']} on {Address(address.host, server.port)}", flush=True)
        ended = serve_until(handler, life, stop, _say)
    if not ended:
        os._exit(1)  # gRPC would wait for clients that no longer read
    server.shutdown()


def _check(options: ServeOptions, address: Address) -> None:
    if options.procs < 1:
        raise ValueError(f"--procs {options.procs}: must be at least 1")
    if options.procs > 1 and address.port == 0:
        raise ValueError("--procs: needs a port in --listen, the first of consecutive ones")
    if options.exit_idle is not None and not options.exit_idle > 0:
        raise ValueError(f"--exit-idle {options.exit_idle:g}: must be above 0 seconds")


def _metrics_address(text: str | None) -> Address | None:
    if text is None:
        return None
    return parsed_address(f"127.0.0.1:{text}" if text.isdecimal() else text)


def _later(address: Address, number: int) -> Address:
    return Address(address.host, address.port + number)


def _service(folder: Path, options: ServeOptions) -> Serves:
    from khop.api.serve import service_of

    limit = options.max_batch_bytes
    most = None if limit is None else byte_size(limit, "--max-batch-bytes", least=1)
    return service_of(folder, [_loaded(path) for path in options.module or ()], most)


def _loaded(path: Path) -> ModuleType:
    """Import the file of a --module option, which this command alone names."""
    spec = spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise ValueError(f"--module {path}: is no Python file")
    module = module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


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
        *(("--module", path) for path in options.module or ()),
        ("--exit-idle", options.exit_idle),
        ("--metrics", metrics),
    ]
    words = [word for name, value in given if value is not None for word in (name, str(value))]
    return [sys.executable, "-m", "khop", "serve", str(folder), *words, *["--insecure"] * security.insecure]


def _stop_on_signals() -> threading.Event:
    """Return an event that the first SIGTERM or Ctrl-C sets. The second Ctrl-C ends the process."""
    stop = threading.Event()

    def ask(number: int, frame: FrameType | None) -> None:
        if stop.is_set() and number == signal.SIGINT:
            raise KeyboardInterrupt
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, ask)
    return stop


def _flight(name: str) -> ModuleType:
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # its failures reach the log as errors of requests
    try:
        return import_module(f"khop.servers.{name}")
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "pyarrow":
            raise
        raise ValueError("servers need pyarrow, for Arrow Flight: pip install pyarrow") from None


def _say(line: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {line}", file=sys.stderr, flush=True)


def print_status(text: str, options: ClientOptions, as_json: bool) -> None:
    """Print the counters of servers, as a table or as one JSON object by address."""
    client = _flight("flight_client")
    access = Access(options.token_file, options.ca, options.client_cert, options.client_key, options.insecure)
    found = {str(address): _status(client, address, access) for address in parsed_addresses([text])}
    if as_json:
        print(json.dumps(found))
        return
    table = Table(title="servers", title_justify="left")
    table.add_column("")
    for address in found:
        table.add_column(address, justify="right")
    for name in dict.fromkeys(name for status in found.values() for name in status):
        table.add_row(name.replace("_", " "), *(_shown(status.get(name, "")) for status in found.values()))
    table_console().print(table)


def _shown(value: object) -> str:
    return f"{value:,}" if isinstance(value, int | float) and not isinstance(value, bool) else str(value)


def _status(client: ModuleType, address: Address, access: Access) -> dict[str, object]:
    dial = client.FlightDial(access)
    try:
        connection = dial.connect(dial.resolve(address)[0], _ASK_S)
        try:
            found: dict[str, object] = json.loads(connection.status(_ASK_S))
            return found
        finally:
            connection.close()
    except ServerError as error:
        if isinstance(error, ValueError | OSError):
            raise
        raise PeerLost(f"{error}; is a server running there? (khop serve GRAPH --listen {address})") from None
