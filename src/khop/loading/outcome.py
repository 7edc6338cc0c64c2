"""What a call on one thread gave, for another thread to take."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

Result = TypeVar("Result")


@dataclass(frozen=True)
class Outcome(Generic[Result]):
    """A result, or the exception that the call ended with."""

    result: Result | None
    error: BaseException | None = None

    @classmethod
    def of(cls, call: Callable[[], Result]) -> Outcome[Result]:
        """Make the call. Nothing that it raises, be it an interrupt, leaves the thread."""
        try:
            return cls(call())
        except BaseException as error:
            return cls(None, error)

    def given(self) -> Result:
        """The result; or the exception is raised, with the traceback of the thread that it comes from."""
        if self.error is None:
            return self.result  # type: ignore[return-value]
        try:
            raise self.error
        finally:
            del self  # or the exception would be held by its own traceback
