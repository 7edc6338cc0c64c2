"""What a call gave is taken elsewhere as if it had been made there."""

from __future__ import annotations

import gc
import traceback
import weakref

import pytest

from khop.loading.outcome import Outcome


class Mine(Exception):
    pass


def fails() -> int:
    raise Mine("so")


@pytest.mark.parametrize("result", [3, None])
def test_a_result_is_given(result: object) -> None:
    assert Outcome.of(lambda: result).given() is result


def test_an_exception_is_raised_where_it_is_taken_and_tells_where_it_came_from() -> None:
    outcome = Outcome.of(fails)
    with pytest.raises(Mine, match="so") as caught:
        outcome.given()
    assert "fails" in [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]


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
            Outcome.of(fails).given()
        except Mine as error:
            return weakref.ref(error)
        raise AssertionError

    gc.disable()
    try:
        assert taken()() is None
    finally:
        gc.enable()
