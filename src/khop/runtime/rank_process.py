"""A spawned process that starts at `rank_entry`, and thus watches its parent from its first instruction."""

from __future__ import annotations

import io
import os
import sys
from contextlib import suppress
from multiprocessing import spawn, util
from multiprocessing.context import SpawnProcess, set_spawning_popen
from multiprocessing.popen_spawn_posix import Popen
from multiprocessing.process import BaseProcess
from multiprocessing.reduction import ForkingPickler
from multiprocessing.resource_tracker import getfd
from types import ModuleType
from typing import Any


class RankProcess(SpawnProcess):
    """A process of `multiprocessing.get_context("spawn")` with a different first line of Python."""

    @staticmethod
    def _Popen(process_obj: BaseProcess) -> Popen:
        return _RankPopen(process_obj)


class _RankPopen(Popen):
    """A Popen with another command line.

    multiprocessing has no hook for the command line alone, so the methods below replace its own.
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
            stream.write(work)  # broken: the process was killed already, and its exit code says so

    def _pickled(self, process_obj: BaseProcess) -> memoryview:
        content = io.BytesIO()
        set_spawning_popen(self)
        try:
            ForkingPickler(content).dump(_preparation(process_obj.name))
            ForkingPickler(content).dump(process_obj)
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
        f"from khop.runtime.rank_entry import main; main(pipe={pipe}, tracker={tracker})"
    )
    return [*interpreter, program, mark]
