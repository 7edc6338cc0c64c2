"""Errors of khop are caught as the kinds of errors that they are."""

from __future__ import annotations

import gc
import traceback
import weakref

import pytest

from khop.errors import Outcome, PeerLost, Terminated, Unsupported


@pytest.mark.parametrize(
    ("error", "kind"), [(PeerLost, RuntimeError), (Unsupported, ValueError), (Terminated, KeyboardInterrupt)]
)
def test_handlers_of_the_kind_catch_it(error: type[BaseException], kind: type[BaseException]) -> None:
    with pytest.raises(kind, match="text"):
        raise error("text")


def test_an_order_to_end_is_no_error_of_the_program() -> None:
    assert not issubclass(Terminated, Exception)


class Failed(Exception):
    """An error of an outcome."""


def fails_once() -> int:
    raise Failed("so")


@pytest.mark.parametrize("result", [3, None])
def test_a_result_is_given(result: object) -> None:
    assert Outcome.of(lambda: result).given() is result


def test_an_exception_is_raised_at_the_consumer_with_its_traceback() -> None:
    outcome = Outcome.of(fails_once)
    with pytest.raises(Failed, match="so") as caught:
        outcome.given()
    assert "fails_once" in [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]


def test_an_interrupt_waits_for_its_taker_too() -> None:
    def interrupted() -> int:
        raise KeyboardInterrupt

    outcome = Outcome.of(interrupted)
    with pytest.raises(KeyboardInterrupt):
        outcome.given()


def test_an_exception_that_was_taken_is_freed_at_once() -> None:
    """It would hold tensors through its traceback until the next collection."""

    def taken() -> weakref.ref[BaseException]:
        try:
            Outcome.of(fails_once).given()
        except Failed as error:
            return weakref.ref(error)
        raise AssertionError

    gc.disable()
    try:
        assert taken()() is None
    finally:
        gc.enable()
