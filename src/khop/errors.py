"""Exceptions of khop.

All other errors are ValueError (invalid input) or OSError (the machine).

Internal: its names may change in any version. The public ones are in `khop.__all__`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

Result = TypeVar("Result")

# The remedy for a file of a graph folder that differs from graph.json.
REMEDY = "the file was changed or damaged. Re-import, or copy it again"


def unread(error: Exception) -> str:
    """Return the reason why a JSON file of khop cannot be read, without the parser's message."""
    if isinstance(error, KeyError):
        return f"no {error}"
    return str(error) if type(error) is ValueError else "it is not JSON, or has invalid values"


# In messages of torch's allocators, of the C++ library, and of the CUDA runtime.
_NO_MEMORY = (
    "can't allocate memory",
    "not enough memory",
    "bad_alloc",
    "out of memory",
    "Storage size calculation overflowed",
)


def is_out_of_memory(error: BaseException) -> bool:
    """Return True if memory was exhausted. Torch raises RuntimeError then, not MemoryError."""
    return isinstance(error, MemoryError) or any(words in str(error) for words in _NO_MEMORY)


# Packages whose ValueErrors are unexpected; those that khop expects are converted where they are raised.
_FOREIGN = ("pyarrow", "json", "numpy", "pydantic_core", "tomllib", "duckdb")


def is_about_input(error: BaseException) -> bool:
    """Return True if an error describes invalid input, rather than a fault of the machine or of khop."""
    package = type(error).__module__.partition(".")[0]
    return isinstance(error, ValueError) and not isinstance(error, UnicodeError) and package not in _FOREIGN


_TOLD = "told"


class PeerLost(RuntimeError):
    """Raised when a peer is lost: a rank, a thread or a machine did not respond in time.

    The message names the rank, the peer and the stage. A trainer saves its state before `Trainer.fit` raises
    the exception.

    Example:
        >>> def trained(trainer):
        ...     try:
        ...         return trainer.fit()
        ...     except khop.PeerLost as error:
        ...         raise SystemExit(f"start the run again with resume: {error}")
    """


class Unsupported(ValueError):
    """Raised if a store or a sampler does not support an operation; the message has the remedy."""


class Terminated(KeyboardInterrupt):
    """Raised in a training run when the process receives SIGTERM; code that handles Ctrl-C also handles it.

    Example:
        >>> try:
        ...     raise khop.Terminated
        ... except KeyboardInterrupt as stop:
        ...     print(type(stop).__name__)
        Terminated
    """


def told(stop: KeyboardInterrupt) -> KeyboardInterrupt:
    """Mark an exception as reported to the user, and return it."""
    stop.args = (_TOLD,)
    return stop


def is_told(stop: BaseException | None) -> bool:
    """Return True if an exception, or one that it followed during cleanup, was reported to the user."""
    return stop is not None and (stop.args == (_TOLD,) or is_told(stop.__context__))


@dataclass(frozen=True)
class Outcome(Generic[Result]):
    """The result of a call on another thread, or its exception."""

    result: Result | None
    error: BaseException | None = None

    @classmethod
    def of(cls, call: Callable[[], Result]) -> Outcome[Result]:
        """Make the call and catch every exception, including interrupts."""
        try:
            return cls(call())
        except BaseException as error:
            return cls(None, error)

    def given(self) -> Result:
        """Return the result, or raise the exception with the traceback of the thread that raised it."""
        if self.error is None:
            return self.result  # type: ignore[return-value]
        try:
            raise self.error
        finally:
            del self  # otherwise, the exception's traceback would keep it alive
