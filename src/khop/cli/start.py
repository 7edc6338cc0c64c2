"""Entry point of `khop`: setup before the import of torch, and errors as one sentence and an exit code."""

from __future__ import annotations

import os
import re
import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from io import TextIOWrapper
from pathlib import Path
from traceback import walk_tb
from typing import TextIO

import khop
from khop.cli.interrupts import INTERRUPTED, end_at_once, ignore, raise_again
from khop.components import is_of_component
from khop.errors import PeerLost, is_about_input, is_out_of_memory
from khop.process_tuning import tune_before_torch

FAILED = 1  # a problem of the machine (no space, no permission, no memory), or a bug
BAD_INPUT = 2  # invalid input
TERMINATED = 143  # exit code of SIGTERM in shells

_OF_RUNS = "lower the batch size, the fanouts, model.hidden or links.negatives_per_positive, or "
_OF_TABLES = "lower --memory or --threads, or "
_SMALLER = {  # other commands have no option that lowers their memory
    **dict.fromkeys(("train", "evaluate", "infer", "predict", "recommend", "profile"), _OF_RUNS),
    **dict.fromkeys(("import", "append"), _OF_TABLES),
}
# Of torch's allocator ("CUDA out of memory"), of the runtime ("CUDA error: out of memory"), of Triton
# ("Triton Error [CUDA]: out of memory"), and of libraries ("CUBLAS_STATUS_ALLOC_FAILED").
_NO_GPU_MEMORY = re.compile(r"\b(CUDA|HIP)( out of memory|\b.{0,40}: out of memory)|_STATUS_ALLOC_FAILED")
_LESS_ON_GPU = (
    "keep less on the GPU (--topology pinned or host; --features pinned, host or mapped; a smaller --cache), "
    "lower the batch size, the fanouts or model.hidden, or use a GPU with more memory"
)


def exit_code(error: Exception) -> int:
    """Return the exit code of the command for this error."""
    return BAD_INPUT if is_about_input(error) else FAILED


def sentence(error: Exception, again: str, command: str = "train") -> str:
    """Return the error of a command as a sentence.

    `again` is the command line that shows the traceback of an unexpected error.
    """
    if isinstance(error, OSError):
        return _of_machine(error)
    if is_about_input(error) or isinstance(error, PeerLost):
        return str(error)
    reason = str(error).strip().partition("\n")[0]
    if _NO_GPU_MEMORY.search(str(error)):
        return f"not enough memory on the GPU ({reason}): {_LESS_ON_GPU}"
    if is_out_of_memory(error):
        smaller = f"{_SMALLER.get(command, '')}use a machine with more memory"
        return f"not enough memory{f' ({reason})' if reason else ''}: {smaller}"
    named = f"{type(error).__name__}: {reason}" if reason else type(error).__name__
    place = _place_in_component(error)
    if place is not None:
        return f"{named} (raised in {place}, in a custom component; its traceback: {again})"
    return f"{named} (unexpected; this is likely a bug in khop, its traceback: {again})"


def _place_in_component(error: Exception) -> str | None:
    """Return file and line of the last call in a component; None if a later call is in khop."""
    calls = [(frame.f_code.co_filename, line) for frame, line in walk_tb(error.__traceback__)]
    calls += re.findall(r'File "(.+)", line (\d+)', str(error))  # the traceback of another rank
    own = Path(khop.__file__).parent
    for file, line in reversed(calls):
        if is_of_component(file):
            return f"{file}, line {line}"
        if Path(file).is_relative_to(own):
            return None
    return None


def _of_machine(error: OSError) -> str:
    if error.filename is None or error.strerror is None:
        return error.strerror or str(error)
    return f"{error.filename}: {error.strerror}"


def run(arguments: Sequence[str] | None = None) -> None:
    """Run the command. Ctrl-C ends it without a traceback, also while modules are loading."""
    # khop reports a lost rank in one sentence. Torch's logs would add C++ stack traces.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "FATAL")
    tune_before_torch()
    set_output_up()
    try:
        end_at_once()
        command = import_module("khop.cli.main")
        raise_again()
        command.run(arguments)
    except KeyboardInterrupt:
        print("khop: stopped", file=sys.stderr)
        sys.exit(INTERRUPTED)
    finally:
        if arguments is None:  # the process is ending
            ignore()


def set_output_up() -> None:
    """Make stdout and stderr accept any text, and print warnings of khop as errors are printed.

    Characters that the encoding of the terminal lacks are escaped. Bytes of file names that are not UTF-8 are
    written unchanged.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            is_utf8 = stream.encoding.lower().replace("-", "") == "utf8"
            stream.reconfigure(errors="surrogateescape" if is_utf8 else "backslashreplace")
    _set_warnings_up()


def _set_warnings_up() -> None:
    """Print a warning of khop as one sentence, once, without file and line."""
    as_python_does = warnings.showwarning
    printed: set[str] = set()  # Python forgets what it has shown when a library changes its filters

    def show(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        if file is None and "khop" in Path(filename).parts:
            if str(message) not in printed:
                print(f"khop: {message}", file=sys.stderr)
            printed.add(str(message))
        else:
            as_python_does(message, category, filename, lineno, file, line)

    warnings.showwarning = show
