"""A batch server in this process, from its start to its shutdown."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib import import_module
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

from khop.cli.commands.shared import ServeOptions
from khop.loading.device.device_placement import byte_size
from khop.process_tuning import usable_cores
from khop.servers.access import Address, ServerSecurity
from khop.servers.main_loop import Life, metrics_on, serve_until
from khop.servers.parts.exchange import read_owners
from khop.servers.request_handler import QueueLimits, RequestHandler
from khop.servers.service import Service

SUPERVISOR = "KHOP_SUPERVISOR"  # environment variable of servers of `khop serve --procs`: its process
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
        """Return the request for a server whose port is `number` higher."""
        return replace(
            self, listen=_later(self.listen, number), metrics=self.metrics and _later(self.metrics, number)
        )


def run_server(request: ServeRequest, stop: threading.Event, began: Callable[[str, Address], None]) -> bool:
    """Serve until `stop` is set or the server is idle. `began` is called once, with graph and address.

    Return whether all requests have been finished; if not, connections are still open.
    """
    options = request.options
    flight_server = _flight("flight_server")
    limits = QueueLimits(at_once=options.at_once or usable_cores())
    handler = RequestHandler(_service(request.folder, options), limits)
    server = flight_server.served(handler, request.listen, request.security)
    with metrics_on(request.metrics, handler.status) as metrics_port:
        if request.metrics is not None:
            say(f"metrics on http://{Address(request.metrics.host, metrics_port)}/metrics")
        began(str(handler.status()["graph"]), Address(request.listen.host, server.port))
        supervisor = os.environ.get(SUPERVISOR)
        life = Life(options.exit_idle, parent=None if supervisor is None else int(supervisor))
        ended = serve_until(handler, life, stop, say)
    if ended:
        server.shutdown()
    return ended


def _later(address: Address, number: int) -> Address:
    return Address(address.host, address.port + number)


def _service(folder: Path, options: ServeOptions) -> Service:
    limit = options.max_batch_bytes
    most = None if limit is None else byte_size(limit, "--max-batch-bytes", least=1)
    views = None if options.view_bytes is None else byte_size(options.view_bytes, "--view-bytes", least=1)
    modules = [_loaded(path) for path in options.module or ()]
    if options.part is not None and options.owners is not None:
        from khop.api.serve import part_service_of

        cache = byte_size(options.cache_bytes, "--cache-bytes")
        owners = read_owners(options.owners)
        return part_service_of(folder, options.part, owners, modules, most, cache, views)
    from khop.api.serve import service_of

    return service_of(folder, modules, most, views)


def _loaded(path: Path) -> ModuleType:
    """Import the file of a --module option; only the user of this command can name it.

    Raises ValueError if another module has the same name, because the file would replace it everywhere.
    """
    spec = spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise ValueError(f"--module {path}: is not a Python file")
    other = _origin(path.stem)
    if other is not None and not (Path(other).is_file() and path.samefile(other)):
        raise ValueError(
            f"--module {path}: a module {path.stem} already exists ({other}); rename the file on servers and "
            "clients"
        )
    module = module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def _origin(name: str) -> str | None:
    """Return the origin of a module by name; None if there is no such module."""
    try:
        spec = find_spec(name)
    except ValueError:  # a module of this process without a spec
        return "of this process"
    return None if spec is None else spec.origin or "a package"


def _flight(name: str) -> ModuleType:
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # its failures are logged as errors of requests
    try:
        return import_module(f"khop.servers.{name}")
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "pyarrow":
            raise
        raise ValueError("servers need pyarrow, for Arrow Flight: pip install pyarrow") from None


def say(line: str) -> None:
    """Print a line to stderr, with the time."""
    print(f"{time.strftime('%H:%M:%S')} {line}", file=sys.stderr, flush=True)
