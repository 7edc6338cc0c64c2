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
    """Return why a JSON file of khop cannot be read: khop's reason, never the text of a parser."""
    if isinstance(error, KeyError):
        return f"no {error}"
    return str(error) if type(error) is ValueError else "it is not JSON, or has other values"


_TOLD = "told"


class PeerLost(RuntimeError):
    """Raised when the peer of an exchange is gone: a rank, a thread or a machine did not answer in time.

    The message names the rank, the peer and the stage. A trainer saves its state before the exception
    leaves `Trainer.fit`.

    Example:
        >>> def trained(trainer):
        ...     try:
        ...         return trainer.fit()
        ...     except khop.PeerLost as error:
        ...         raise SystemExit(f"start the run again with resume: {error}")
    """


class Unsupported(ValueError):
    """A store or a sampler does not have the operation that was asked of it; the text names the remedy."""


class Terminated(KeyboardInterrupt):
    """Raised in a training run when the process receives SIGTERM; code that handles Ctrl-C handles it too.

    Example:
        >>> try:
        ...     raise khop.Terminated
        ... except KeyboardInterrupt as stop:
        ...     print(type(stop).__name__)
        Terminated
    """


def told(stop: KeyboardInterrupt) -> KeyboardInterrupt:
    """Mark a stop as reported to the user, and return it."""
    stop.args = (_TOLD,)
    return stop


def is_told(stop: BaseException | None) -> bool:
    """Return True if a stop was reported to the user, also if clean-up after it raised another exception."""
    return stop is not None and (stop.args == (_TOLD,) or is_told(stop.__context__))


@dataclass(frozen=True)
class Outcome(Generic[Result]):
    """The result of a call on another thread, or the exception that ended it."""

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
            del self  # or the exception's own traceback would keep it alive
