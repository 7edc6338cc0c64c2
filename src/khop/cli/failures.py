"""Error reports of the command: one sentence and an exit code."""

from __future__ import annotations

from khop.errors import PeerLost

FAILED = 1  # a problem of the machine (no space, no permission, no memory), or a bug
BAD_INPUT = 2  # invalid input
INTERRUPTED = 130  # as shells give it for SIGINT
TERMINATED = 143  # as shells give it for SIGTERM

_NO_MEMORY = ("can't allocate memory", "bad_alloc", "out of memory", "Storage size calculation overflowed")
_SMALLER = (
    "lower the batch size, the fanouts, model.hidden or links.negatives_per_positive, or use a machine with "
    "more memory"
)
_NO_GPU_MEMORY = ("CUDA out of memory", "HIP out of memory")
_LESS_ON_GPU = (
    "keep less on the GPU (--topology pinned or host; --features pinned, host or mapped; a smaller --cache), "
    "lower the batch size, the fanouts or model.hidden, or use a GPU with more memory"
)


def exit_code(error: Exception) -> int:
    """Return the exit code of the command for this error."""
    return BAD_INPUT if isinstance(error, ValueError) else FAILED


def sentence(error: Exception, again: str) -> str:
    """Return the error as a sentence. `again` is a command to show the traceback of an unexpected error."""
    if isinstance(error, OSError):
        return _of_machine(error)
    if isinstance(error, (ValueError, PeerLost)):
        return str(error)
    reason = str(error).strip().partition("\n")[0]
    if any(words in str(error) for words in _NO_GPU_MEMORY):
        return f"not enough memory on the GPU ({reason}): {_LESS_ON_GPU}"
    if isinstance(error, MemoryError) or any(words in str(error) for words in _NO_MEMORY):
        return f"not enough memory{f' ({reason})' if reason else ''}: {_SMALLER}"
    named = f"{type(error).__name__}: {reason}" if reason else type(error).__name__
    return f"{named} (unexpected; this is likely a bug in khop, its traceback: {again})"


def _of_machine(error: OSError) -> str:
    if error.filename is None or error.strerror is None:
        return str(error)
    return f"{error.filename}: {error.strerror}"
