"""Result of a call on one thread, to be taken by another thread."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

Result = TypeVar("Result")


@dataclass(frozen=True)
class Outcome(Generic[Result]):
    """A result, or the exception that ended the call."""

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
