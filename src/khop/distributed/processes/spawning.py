"""Spawned ranks on this machine: started, supervised and ended together.

A spawned process starts in `rank_entry`, and thus watches its parent from the first instruction.
"""

from __future__ import annotations

import builtins
import io
import json
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from multiprocessing import spawn, util
from multiprocessing.connection import wait
from multiprocessing.context import SpawnProcess, set_spawning_popen
from multiprocessing.popen_spawn_posix import Popen
from multiprocessing.process import BaseProcess
from multiprocessing.reduction import ForkingPickler
from multiprocessing.resource_tracker import getfd
from pickle import PicklingError
from types import FrameType, ModuleType
from typing import Any

from khop.distributed.processes.launchers import LOOPBACK, RankInfo
from khop.distributed.processes.rank_entry import STOPPING, grant_grace
from khop.distributed.processes.rendezvous import hosted_store, reached_store
from khop.distributed.processes.watch import GRACE_S, TCPStore
from khop.errors import PeerLost, Terminated, Unsupported, is_about_input, is_told, told


class RankProcess(SpawnProcess):
    """A process of `multiprocessing.get_context("spawn")` with a different entry point."""

    @staticmethod
    def _Popen(process_obj: BaseProcess) -> Popen:
        return _RankPopen(process_obj)


class _RankPopen(Popen):
    """A Popen with another command line.

    multiprocessing does not have a hook for the command line, so the methods below replace the originals.
    """

    def duplicate_for_child(self, fd: int) -> int:
        self._inherited.append(fd)
        return fd

    def _launch(self, process_obj: BaseProcess) -> None:
        self._inherited: list[int] = []
        work = self._pickled(process_obj)
        pipe, pipe_of_parent = os.pipe()
        ended, alive = os.pipe()  # the kernel closes `alive` when the process ends
        self.sentinel = ended
        self.finalizer = util.Finalize(self, _close, (ended, pipe_of_parent))
        tracker = getfd()
        assert tracker is not None  # getfd has started it
        command = _command(pipe, tracker)
        try:
            inherited = [*self._inherited, tracker, pipe, alive]
            self.pid = util.spawnv_passfds(os.fsencode(command[0]), command, inherited)
        finally:
            _close(pipe, alive)
        with suppress(BrokenPipeError), open(pipe_of_parent, "wb", closefd=False) as stream:
            stream.write(work)  # a broken pipe means the process was killed, which its exit code shows

    def _pickled(self, process_obj: BaseProcess) -> memoryview:
        content = io.BytesIO()
        set_spawning_popen(self)
        try:
            ForkingPickler(content).dump(_preparation(process_obj.name))
            ForkingPickler(content).dump(process_obj)
        except (PicklingError, AttributeError, TypeError) as error:
            raise ValueError(
                f"the function or its arguments cannot be sent to the processes of ranks: {error}; define "
                "functions and classes at the top level of a module that ranks can import, make locks, open "
                "files and compiled functions inside the function, or use procs=1"
            ) from None
        finally:
            set_spawning_popen(None)
        return content.getbuffer()


def has_main_file(main: ModuleType) -> bool:
    """Return True if another process can run the file or module that is `__main__` of this one."""
    if getattr(main, "__spec__", None) is not None:
        return True
    return os.path.isfile(getattr(main, "__file__", None) or "")


def _preparation(name: str) -> dict[str, Any]:
    """Return multiprocessing's data, without the path of a script that was read from stdin."""
    data = spawn.get_preparation_data(name)
    if not has_main_file(sys.modules["__main__"]):
        data.pop("init_main_from_path", None)
    return data


def _close(*fds: int) -> None:
    for fd in fds:
        os.close(fd)


def _command(pipe: int, tracker: int) -> list[str]:
    """Return multiprocessing's command line, flags included, with a program that starts at `rank_entry`."""
    *interpreter, _, mark = spawn.get_command_line(pipe_handle=pipe, tracker_fd=tracker)
    modules = [folder for folder in sys.path if isinstance(folder, str)]
    program = (
        f"import sys; sys.path[:] = {modules!r}; "
        f"from khop.distributed.processes.rank_entry import main; main(pipe={pipe}, tracker={tracker})"
    )
    return [*interpreter, program, mark]


STOPPING_S = 15.0  # for ranks to save their work after a signal to stop
_TOLD = {128 + signal.SIGINT, 128 + signal.SIGTERM}  # exit codes of ranks that were stopped
_UNTOLD = 71  # exit code of a rank that was stopped without reporting it
_STOPPED = {*_TOLD, _UNTOLD, -signal.SIGINT}


@dataclass(frozen=True)
class Failure:
    """Error of a rank, as reported to the process that started it."""

    rank: int
    kind: str  # class of the error
    kept: str  # the class that it is raised as again; "" if it is unexpected
    message: str
    system: Sequence[Any]  # errno, strerror, filename, winerror and filename2 of a system error; else empty
    traceback: str
    at: float  # seconds of the machine's monotonic clock

    @classmethod
    def of(cls, rank: int, error: BaseException) -> Failure:
        """Return the failure of a rank by this error, which has just been raised."""
        is_kept = is_about_input(error) or not isinstance(error, ValueError)
        kept = next((each.__name__ for each in type(error).__mro__ if is_kept and each in _KEPT), "")
        system: list[Any] = []
        if isinstance(error, OSError) and error.errno is not None:
            fields = (error.errno, error.strerror, error.filename, None, error.filename2)
            system = [_plain(field) for field in fields]
        text = "".join(traceback.format_exception(error))
        return cls(rank, type(error).__name__, kept, str(error), system, text, time.monotonic())

    @property
    def is_cause(self) -> bool:
        """True if the error is this rank's, not a consequence of another rank's end."""
        return self.kept != PeerLost.__name__

    def error(self) -> Exception:
        """Return the exception to raise in this process; invalid input and system errors keep their type.

        They have the rank and its traceback as a note, so that the message remains a sentence.
        """
        kept = next((each for each in _KEPT if each.__name__ == self.kept), None)
        what = "has no memory left" if kept is MemoryError else f"failed with {self.kind}"
        if kept is None:
            return RuntimeError(f"rank {self.rank} {what}: {self.message}\n\n{self.traceback}")
        error = kept(*(self.system or [self.message or f"rank {self.rank} {what}"]))
        error.add_note(f"rank {self.rank} failed:\n\n{self.traceback}")
        return error


def _plain(field: object) -> Any:  # noqa: ANN401
    """Return a field of a system error as a value that JSON has."""
    if isinstance(field, bytes | os.PathLike):
        return os.fsdecode(field)
    return field if field is None or isinstance(field, int | str) else str(field)


# Errors of a rank that are raised as they are, each subclass by the first of its bases.
_OF_SYSTEM = [
    each for each in vars(builtins).values() if isinstance(each, type) and issubclass(each, OSError)
]
_KEPT: list[type[Exception]] = [Unsupported, ValueError, PeerLost, MemoryError, *dict.fromkeys(_OF_SYSTEM)]


def run_ranks(
    target: Callable[..., None],
    procs: int,
    arguments: Sequence[object],
    start: Callable[[int], AbstractContextManager[None]] | None = None,
) -> None:
    """Call `target(rank_info, *arguments)` in `procs` new processes; return when all have succeeded.

    `start(rank)` is a context that is entered while a process is started; default none.

    No process survives the call. An error in one ends the others within seconds, and is raised here. Ctrl-C
    and SIGTERM are forwarded once to every rank, and ranks get time to save their work.
    """
    store = hosted_store(LOOPBACK.address)
    ranks: list[RankProcess] = []
    for rank in range(procs):
        rank_info = RankInfo(rank, procs, rank, procs, store.host, store.port, launcher_hosts_store=True)
        process = RankProcess(target=_rank, args=(target, rank_info, *arguments), name=_name(rank))
        ranks.append(process)
    signals: list[int] = []
    try:
        with _passing_on(ranks, signals):
            for rank, process in enumerate(ranks):
                if not signals:
                    with nullcontext() if start is None else start(rank):
                        _start(process)
                    if signals:  # the signal came before the process had an id
                        _send(process, signals[-1])
            _await_end([process for process in ranks if process.pid is not None], signals)
    finally:
        ended = [process for process in ranks if _end(process)]
    _raise_for([process for process in ranks if process not in ended], signals, store)


def _name(rank: int) -> str:
    return f"rank {rank}"


def _start(process: RankProcess) -> None:
    """Start a rank with signals blocked: neither this process nor the rank can stop half-way.

    A signal during the imports of the rank ends it immediately; later ones reach it once, from this process.
    """
    getfd()  # starts the tracker of multiprocessing, which unblocks signals
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)
    try:
        process.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _rank(target: Callable[..., None], rank_info: RankInfo, *arguments: object) -> None:
    """Run the target in a started process."""
    signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)
    os.setpgrp()
    grant_grace(GRACE_S)
    signals: list[int] = []

    def stop(number: int, frame: FrameType | None) -> None:
        signals.append(number)
        raise Terminated if number == signal.SIGTERM else KeyboardInterrupt

    for number in STOPPING:
        signal.signal(number, stop)
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPPING)
        target(rank_info, *arguments)
        return
    except BaseException as error:
        if not (signals or isinstance(error, KeyboardInterrupt)):
            if not isinstance(error, SystemExit):
                _tell(rank_info, error)
                raise SystemExit(1) from None
            raise
        for again in STOPPING:  # a further signal must not interrupt the interpreter's shutdown
            signal.signal(again, signal.SIG_IGN)
        is_termination = signal.SIGTERM in signals or isinstance(error, Terminated)
        number = signal.SIGTERM if is_termination else signal.SIGINT
        code = 128 + number if is_told(error) else _UNTOLD
    raise SystemExit(code)


def _tell(rank_info: RankInfo, error: BaseException) -> None:
    failure = Failure.of(rank_info.rank, error)
    try:
        store = reached_store(rank_info.rank, rank_info.host, rank_info.port, GRACE_S)
        store.set(f"failure/{_name(rank_info.rank)}", json.dumps(vars(failure)))
    except RuntimeError:  # the parent process is gone: print the error for the user
        traceback.print_exception(error)


@contextmanager
def _passing_on(ranks: Sequence[RankProcess], signals: list[int]) -> Iterator[None]:
    """Forward the signals of this process to every rank, and record them in `signals`."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def pass_on(number: int, frame: FrameType | None) -> None:
        signals.append(number)
        for process in ranks:
            _send(process, number)

    before = {number: signal.signal(number, pass_on) for number in STOPPING}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _send(process: RankProcess, number: int) -> None:
    if process.pid is not None and process.exitcode is None:
        with suppress(ProcessLookupError):  # it has already ended
            os.kill(process.pid, number)


def _await_end(ranks: Sequence[RankProcess], signals: Sequence[int]) -> None:
    """Wait until every rank has ended, or until the grace period after a failure or a signal is over."""
    end = float("inf")
    while alive := [process for process in ranks if process.exitcode is None]:
        wait([process.sentinel for process in alive], timeout=0.2)
        has_failed = any(process.exitcode for process in ranks)
        if signals or has_failed:
            end = min(end, time.monotonic() + (STOPPING_S if signals else GRACE_S))
        if time.monotonic() > end:
            return


def _end(process: RankProcess) -> bool:
    """End a rank; return True if it had to be killed."""
    if process.pid is None:
        return False
    has_to_be_killed = process.exitcode is None
    if has_to_be_killed:
        process.kill()
    process.join()
    return has_to_be_killed


def _raise_for(ranks: Sequence[RankProcess], signals: Sequence[int], store: TCPStore) -> None:
    """Raise the first error among ranks that were not stopped."""
    codes = {process.exitcode for process in ranks}
    if signals or codes & _STOPPED:
        is_termination = signal.SIGTERM in signals or 128 + signal.SIGTERM in codes
        stop = Terminated() if is_termination else KeyboardInterrupt()
        raise told(stop) if codes & _TOLD else stop
    failures = [
        Failure(**json.loads(store.get(f"failure/{process.name}")))
        for process in ranks
        if store.check([f"failure/{process.name}"])
    ]
    first = min(failures, key=lambda failure: (not failure.is_cause, failure.at), default=None)
    killed = [
        f"{process.name} was killed by {signal.Signals(-process.exitcode).name}"
        for process in ranks
        if process.exitcode is not None and process.exitcode < 0
    ]
    if killed and (first is None or not first.is_cause):
        raise PeerLost("; ".join([*killed, *([first.message] if first else [])]))
    if first is not None:
        raise first.error()
    for process in ranks:
        if process.exitcode:
            raise SystemExit(process.exitcode)
