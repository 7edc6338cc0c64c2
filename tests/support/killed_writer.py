"""`python -m support.killed_writer FOLDER`: commands of khop, each in a fork that is killed by what it does.

Lines of JSON come in: the words of a command, and the number of the event at which the fork kills itself
(0: never). The answer to each is the exit status and the number of events. An event is a change of the file
system in FOLDER: a file opened to be written, a rename, a folder made or removed. So a kill is at a state of
the work, on any machine.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import Any

import duckdb  # noqa: F401  # loaded once, for all forks
import pyarrow.parquet  # noqa: F401
import torch

import khop.api.inference
import khop.cli.importing
import khop.cli.train
import khop.data.tables.append  # noqa: F401
from khop.cli.main import run

FOLDER = os.path.abspath(sys.argv[1])
CHANGES = {"os.rename", "os.mkdir", "os.remove", "os.rmdir", "os.link"}


class Events:
    """Counter of the changes of one process, which kills it at a number."""

    def __init__(self, last: int) -> None:
        self.count, self._last = 0, last

    def see(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Hear of an event of the interpreter (sys.addaudithook)."""
        is_opened = event == "open" and arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
        if not (is_opened or event in CHANGES) or not isinstance(arguments[0], (str, bytes, os.PathLike)):
            return
        if not os.path.abspath(os.fsdecode(arguments[0])).startswith(FOLDER):
            return
        self.count += 1
        if self.count == self._last:
            os.kill(os.getpid(), signal.SIGKILL)


def work(words: list[str], last: int) -> None:
    """Run a command, and print the number of its events."""
    events = Events(last)
    sys.addaudithook(events.see)
    torch.set_num_threads(1)
    try:
        run(words)
    except SystemExit as end:
        print(events.count, file=answers, flush=True)
        os._exit(end.code if isinstance(end.code, int) else 1)
    print(events.count, file=answers, flush=True)
    os._exit(0)


if __name__ == "__main__":
    for line in sys.stdin:
        words, last = json.loads(line)
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            answers = os.fdopen(write, "w")
            os.dup2(2, 1)
            work(words, last)
        os.close(write)
        _, status = os.waitpid(child, 0)
        count = os.fdopen(read).read().strip()
        print(json.dumps([os.waitstatus_to_exitcode(status), int(count or 0)]), flush=True)
