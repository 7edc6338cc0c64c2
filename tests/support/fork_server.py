"""Processes of tests, forked from a server that has imported torch and khop.

A start of the command, of torchrun or of a rank takes two to six seconds of a core, nearly all for imports.
Within `forked_starts()`, `subprocess.Popen([sys.executable, "-m", "khop", ...])`, scripts, processes of
multiprocessing's spawn and those of pytest-xdist are forked from a process without threads instead. They have
the arguments, environment, working directory, streams, session, group and signals of a real start, and are
children of the process that started them; `tests/test_suite.py` compares both.

Three things differ: the modules are imported already, the picture of a run is empty, and variables that
Python, OpenMP or the loader read when a process starts must be those of the server. Starts with other
variables, with `preexec_fn`, of other modules or `-c`, and in `real_starts()` are real.
"""

from __future__ import annotations

import atexit
import ctypes
import io
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from multiprocessing import util
from pathlib import Path
from types import ModuleType
from typing import Any

MODULES = (
    "khop", "torch.distributed.run",
    "kernels.ill_formed", "support.gated_khop", "support.held_ranks", "support.killed_khop",
    "support.start_probe",
)  # fmt: skip
LOADED = (  # by the server; pyarrow has a thread. Optimizers import torch._dynamo: 3 s
    "torch", "torch.distributed.run", "torch._dynamo", "khop.cli.main", "khop.cli.train",
    # A run draws its curve: a second to import.
    "matplotlib.figure", "matplotlib.layout_engine", "matplotlib.backends.backend_agg",
)  # fmt: skip
AT_START = (  # how names of variables begin
    "PYTHON", "OMP_", "GOMP_", "KMP_", "MKL_", "LC_", "LANG", "LD_", "MALLOC_", "GLIBC_",
)  # fmt: skip
SERVER = {"OPENBLAS_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive", "TORCH_CPP_LOG_LEVEL": "FATAL"}
TESTS = Path(__file__).parents[1]
REAL = "KHOP_TEST_STARTS"  # "real": all starts are
RANK = "--multiprocessing-fork"  # last argument of a process of multiprocessing's spawn
WORKER = "import sys;exec(eval(sys.stdin.readline()))"  # what pytest-xdist's processes run with -c
TITLE_BYTES = 2000
HIGH = 500  # file descriptors from here on are out of the way of a program's own
_LIBC = ctypes.CDLL(None, use_errno=True)
_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER


class Client:
    """A server's end in the process that starts others by it."""

    def __init__(self, orders: socket.socket, server: subprocess.Popen[bytes] | None = None) -> None:
        self._orders = orders
        self._server = server
        self._lock = threading.Lock()
        self._pid = os.getpid()

    def start(self, order: dict[str, Any], fds: Sequence[int]) -> int:
        """Return the id of a new child of this process, whose file descriptors `order["fds"]` are these."""
        assert self._pid == os.getpid(), "a fork has no server"
        order |= {
            "cwd": order.get("cwd") or os.getcwd(),
            "affinity": sorted(os.sched_getaffinity(0)),
            "blocked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
            "ignored": [n for n in _SIGNALS if signal.getsignal(n) is signal.SIG_IGN and n != signal.SIGPIPE],
        }
        body = json.dumps(order).encode()
        with self._lock:
            _LIBC.prctl(_SUBREAPER, 1, 0, 0, 0)  # the process that forks ends, and its child becomes ours
            try:
                socket.send_fds(self._orders, [len(body).to_bytes(4, "little")], list(fds))
                self._orders.sendall(body)
                answer = self._orders.recv(4)
            finally:
                _LIBC.prctl(_SUBREAPER, 0, 0, 0, 0)
        assert answer, "the server of forks has ended"
        return int.from_bytes(answer, "little")

    def close(self) -> None:
        """End the server."""
        self._orders.close()
        if self._server is not None:
            self._server.wait()


_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGPIPE)
_real: list[None] = []  # an item for each `real_starts()` that is entered
_inherited: list[Client] = []  # the server of a process that was forked, if it may start others


@contextmanager
def real_starts() -> Iterator[None]:
    """Start processes as users do."""
    _real.append(None)
    try:
        yield
    finally:
        _real.pop()


@contextmanager
def forked_starts() -> Iterator[None]:
    """Fork what this process starts, but for what must be real."""
    if os.environ.get(REAL) == "real" or sys.platform != "linux" or _inherited:
        yield
        return
    clients: list[Client] = []

    def client() -> Client:
        if not clients:
            clients.append(_started())
        return clients[0]

    with _installed(client):
        yield
    for each in clients:
        each.close()


def _started() -> Client:
    near, far = socket.socketpair()
    program = [sys.executable, __file__, str(far.fileno()), " " * TITLE_BYTES]
    with real_starts():
        server = subprocess.Popen(
            program, pass_fds=[far.fileno()], env=os.environ | SERVER, stdin=subprocess.DEVNULL
        )
    far.close()
    return Client(near, server)


@contextmanager
def _installed(client: Callable[[], Client]) -> Iterator[None]:
    execute, spawn = subprocess.Popen._execute_child, util.spawnv_passfds

    def execute_child(self: subprocess.Popen[Any], *given: Any) -> None:  # noqa: ANN401
        (args, executable, preexec_fn, _, pass_fds, cwd, env, _, _, shell,
         p2cread, _, _, c2pwrite, _, errwrite, _, gid, gids, uid, umask, session, group) = given  # fmt: skip
        special = (
            executable,
            preexec_fn,
            shell,
            gid is not None,
            gids is not None,
            uid is not None,
            umask != -1,
        )
        order = None if any(special) or isinstance(args, (str, bytes)) else _order(list(args), env)
        if order is None:
            execute(self, *given)
            return
        streams = [own if own != -1 else std for std, own in enumerate((p2cread, c2pwrite, errwrite))]
        order |= {"cwd": os.path.abspath(cwd) if cwd else None, "session": session, "group": group}
        order["fds"] = [0, 1, 2, *pass_fds]
        try:
            self.pid = client().start(order, [*streams, *pass_fds])
            self._child_created = True
        finally:
            self._close_pipe_fds(*given[10:16])

    def spawnv_passfds(path: bytes, args: Sequence[str], passfds: Sequence[int]) -> int:
        order = _order(list(args), None) if args[-1] == RANK else None
        if order is None:
            return spawn(path, args, passfds)
        order["fds"] = [0, 1, 2, *sorted(set(passfds))]
        return client().start(order, order["fds"])

    subprocess.Popen._execute_child = execute_child  # type: ignore[method-assign]
    util.spawnv_passfds = spawnv_passfds
    try:
        yield
    finally:
        subprocess.Popen._execute_child = execute  # type: ignore[method-assign]
        util.spawnv_passfds = spawn


def _order(words: list[Any], env: Mapping[Any, Any] | None) -> dict[str, Any] | None:
    """Return the order for a command line; None if it has to be a real start."""
    words = [os.fsdecode(word) for word in words]
    environment = {os.fsdecode(k): os.fsdecode(v) for k, v in (os.environ if env is None else env).items()}
    if _real or words[0] != sys.executable or _at_start(environment) != _at_start(os.environ):
        return None
    options, unbuffered, place = [], False, 1
    while place < len(words) and words[place] not in ("-c", "-m") and words[place].startswith("-"):
        if words[place] == "-u":
            unbuffered = True
        elif words[place].startswith("-W"):
            place += words[place] == "-W"
            options.append(words[place].removeprefix("-W"))
        elif words[place] != "-B" or "PYTHONDONTWRITEBYTECODE" not in environment:
            return None
        place += 1
    if place == len(words):
        return None
    kind, target, *rest = words[place:] if words[place].startswith("-") else ["", *words[place:]]
    is_worker = target == WORKER and not is_measured()
    known = {"-m": target in MODULES, "-c": words[-1] == RANK or is_worker, "": target.endswith(".py")}
    if not known[kind]:
        return None
    return {
        "kind": kind, "target": target, "argv": rest, "words": words, "env": environment,
        "warnings": options, "unbuffered": unbuffered,
    }  # fmt: skip


def is_measured() -> bool:
    """Return True if this run of pytest measures coverage, also of what imports execute."""
    return any(word.startswith("--cov") for word in sys.argv)


def _at_start(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that are read when a process starts, but for those that the server sets."""
    given = {path for path in environment.get("PYTHONPATH", "").split(os.pathsep) if path}
    foreign = given - {*sys.path, str(TESTS), str(TESTS.parent / "src")}
    own = (*SERVER, "PYTHONPATH")
    found = {k: v for k, v in environment.items() if k.startswith(AT_START) and k not in own}
    waiting = environment.get("OMP_WAIT_POLICY", "passive")
    return found | {"PYTHONPATH": str(sorted(foreign)), "OMP_WAIT_POLICY": waiting}


# In the server.


def serve(orders: socket.socket) -> dict[str, Any]:
    """Fork a process for each order; return the order in the new process. End with the other side."""
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    _name(["khop tests:", "fork server"])
    while True:
        size, fds, _, _ = socket.recv_fds(orders, 4, 250)
        if not size:
            os._exit(0)
        body = b""
        while len(body) < int.from_bytes(size, "little"):
            body += orders.recv(int.from_bytes(size, "little") - len(body))
        told, tell = os.pipe()
        between = os.fork()
        if between == 0:
            own = os.getpid()
            child = os.fork()
            if child == 0:
                order: dict[str, Any] = json.loads(body)
                _take(order, fds)
                orders.detach()  # it is closed
                while os.getppid() == own:  # then this is a child of the process that wants it
                    time.sleep(0.0002)
                return order
            os.write(tell, child.to_bytes(4, "little"))
            os._exit(0)
        os.waitpid(between, 0)
        orders.sendall(os.read(told, 4))
        for fd in (told, tell, *fds):
            os.close(fd)


def _take(order: dict[str, Any], fds: Sequence[int]) -> None:
    """Make this process the one that was ordered: file descriptors, session, signals, environment."""
    import fcntl

    high = [fcntl.fcntl(fd, fcntl.F_DUPFD, HIGH) for fd in fds]
    os.closerange(0, HIGH)
    for fd, wanted in zip(high, order["fds"], strict=True):
        os.dup2(fd, wanted, inheritable=wanted < 3)
    os.closerange(HIGH, HIGH + 2 * len(high) + 64)
    if order.get("session"):
        os.setsid()
    elif order.get("group", -1) not in (-1, None):
        os.setpgid(0, order["group"])
    os.sched_setaffinity(0, order["affinity"])
    os.chdir(order["cwd"])
    os.environ.clear()
    os.environ.update(order["env"])
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN if number in order["ignored"] else signal.SIG_DFL)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    if signal.SIGINT not in order["ignored"]:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, order["blocked"])


def _name(words: Sequence[str]) -> None:
    """Set the command line that /proc shows."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    begin, end = int(fields[45]), int(fields[46])
    *first, last = [os.fsencode(word) for word in words]
    text = b"\0".join(first)[: end - begin - len(last) - 2] + b"\0" + last
    ctypes.memset(begin, 0, end - begin)
    ctypes.memmove(begin, text, len(text))


def _run(order: dict[str, Any], path: Sequence[str], defaults: list[Any]) -> None:
    """Run the program of an order as `python -m` and `python -c` do."""
    import runpy
    import warnings

    _name(order["words"])
    kind, target = order["kind"], order["target"]
    own = {"-m": order["cwd"], "-c": "", "": os.path.dirname(os.path.realpath(target))}[kind]
    given = [path for path in order["env"].get("PYTHONPATH", "").split(os.pathsep) if path]
    sys.path[:] = [own, *given, *path]
    sys.orig_argv[:] = order["words"]
    sys.argv[:] = [kind or target, *order["argv"]]
    sys.warnoptions[:] = order["warnings"]
    imported = warnings.filters[: len(warnings.filters) - len(defaults)]
    warnings.filters[:] = defaults
    warnings._processoptions(order["warnings"])  # type: ignore[attr-defined]
    warnings.filters[:] = [*imported, *warnings.filters]
    warnings._filters_mutated()  # type: ignore[attr-defined]
    _open_streams(order["unbuffered"] or bool(order["env"].get("PYTHONUNBUFFERED")))
    main = ModuleType("__main__")
    sys.modules["__main__"] = main
    if kind == "-m":
        runpy._run_module_as_main(target)  # type: ignore[attr-defined]
        return
    if kind == "":
        main.__file__ = os.path.abspath(target)
        main.__dict__["__cached__"] = None
    code = target if kind == "-c" else Path(target).read_bytes()
    exec(compile(code, "<string>" if kind == "-c" else os.path.abspath(target), "exec"), main.__dict__)


def _open_streams(unbuffered: bool) -> None:
    for fd, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        errors = "backslashreplace" if name == "stderr" else getattr(sys, name).errors
        binary = open(  # noqa: SIM115
            fd, f"{mode}b", 0 if unbuffered and fd else -1, closefd=False
        )
        text = io.TextIOWrapper(
            binary, sys.stdout.encoding, errors, line_buffering=fd == 2 or os.isatty(fd),
            write_through=unbuffered and fd > 0,
        )  # fmt: skip
        text.mode = mode  # type: ignore[attr-defined]
        setattr(sys, name, text)
        setattr(sys, f"__{name}__", text)


def _serve_own_ranks() -> Client:
    """Fork a server for what this process starts; it ends with this process."""
    import fcntl

    near, far = socket.socketpair()
    if os.fork() == 0:
        kept = fcntl.fcntl(far.detach(), fcntl.F_DUPFD, HIGH)
        near.detach()  # a socket that is deleted later would close a number that is in use again
        os.closerange(0, HIGH)
        nothing = os.open(os.devnull, os.O_RDWR)
        for fd in (1, 2):
            os.dup2(nothing, fd)
        return _RankOrder(serve(socket.socket(fileno=kept)))  # type: ignore[return-value]
    far.close()
    kept = fcntl.fcntl(near.fileno(), fcntl.F_DUPFD_CLOEXEC, HIGH)
    near.close()
    client = Client(socket.socket(fileno=kept))
    atexit.register(client.close)
    return client


class _RankOrder:
    def __init__(self, order: dict[str, Any]) -> None:
        self.order = order


def main() -> None:
    """Be the server that the command line describes, and then what it forks."""
    import gc
    import warnings
    from importlib import import_module

    defaults = list(warnings.filters)
    orders = socket.socket(fileno=int(sys.argv[1]))
    path = sys.path[1:]
    given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    path = [each for each in path if each not in given]
    sys.path[:] = path
    for name in LOADED:
        import_module(name)
    sys.modules["khop.cli.main"].built()
    os.fsync = lambda fd: None  # as in the tests
    sys.modules["khop.cli.train"].drawn_curve = lambda *given: b""  # half of the time of a small run
    assert len(os.listdir("/proc/self/task")) == 1, "a process with threads must not fork"
    gc.collect()
    gc.freeze()
    order = serve(orders)
    if order["kind"] != "-c" or order["target"] == WORKER:
        own = _serve_own_ranks()
        if isinstance(own, _RankOrder):
            order = own.order
        else:
            client = own
            if order["target"] == WORKER:  # tests import this module
                _inherited.append(client)
                sys.modules["support.fork_server"] = sys.modules[__name__]
            with _installed(lambda: client):
                _run(order, path, defaults)
            return
    _run(order, path, defaults)


if __name__ == "__main__":
    main()
