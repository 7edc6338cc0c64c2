"""Promises of a protocol: test functions that check an implementation and report the difference."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import wraps
from types import TracebackType
from typing import Any, TypeVar

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from khop.errors import Unsupported

Made = TypeVar("Made")  # the implementation, or a function that makes it
Value = TypeVar("Value")


class BrokenPromise(AssertionError):
    """A promise of a protocol that an implementation does not keep: the promise, then the difference."""


class _Naming:
    """A context whose errors name a promise."""

    def __init__(self, sentence: str) -> None:
        self._sentence = sentence

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, BrokenPromise):
            return
        if isinstance(error, AssertionError):
            raise BrokenPromise(f"{self._sentence} {error}") from error
        if error is not None:
            error.add_note(f"The promise that was tested: {self._sentence}")


def promise(check: Callable[[Made], None]) -> Callable[[Made], None]:
    """Return a promise: failures of `check` become `BrokenPromise` and begin with its docstring."""
    sentence = (check.__doc__ or check.__name__).partition("\n")[0]

    @wraps(check)
    def kept(made: Made) -> None:
        with _Naming(sentence):
            check(made)

    return kept


def keep_all(promises: Iterable[Callable[[Made], None]], made: Made) -> None:
    """Run all tests of a suite, one after the other."""
    for each in promises:
        each(made)


def examples(
    most: int | None = None, **strategies: st.SearchStrategy[Any]
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Run a function on examples of the strategies: as many as the hypothesis profile says, or `most`."""

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        unhurried = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
        some = (
            unhurried if most is None else settings(unhurried, max_examples=min(most, unhurried.max_examples))
        )
        return some(given(**strategies)(function))

    return decorate


def expect(is_so: bool, difference: str) -> None:
    """Raise AssertionError with the difference unless a condition is true."""
    if not is_so:
        raise AssertionError(difference)


def expect_equal(what: str, found: object, expected: object) -> None:
    """Raise AssertionError unless two plain values are equal."""
    if found != expected:
        raise AssertionError(f"{what}: {found!r}, must be {expected!r}")


def expect_refusal(call: Callable[[], object], what: str, *named: str) -> None:
    """Raise AssertionError unless `call` raises a ValueError that contains all strings in `named`."""
    try:
        call()
    except ValueError as error:
        text = str(error)
    else:
        raise AssertionError(f"{what}: no error was raised, must be a ValueError")
    missing = [word for word in named if word not in text]
    if missing:
        raise AssertionError(f"{what}: the error {text!r} does not name {', '.join(missing)}")


def unless_unsupported(call: Callable[[], Value]) -> Value | None:
    """Return the result of a call; None if it raises Unsupported with a message."""
    try:
        return call()
    except Unsupported as error:
        text = str(error)
    expect(bool(text), "Unsupported was raised without a message with the remedy")
    return None
