"""Ctrl-C waits for what belongs together, and is not lost."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from khop import Terminated
from khop.training.interrupts import interrupts_held, interrupts_noted, terminations_raised


def press_ctrl_c() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def test_the_block_ends_before_the_interrupt_comes() -> None:
    done = []

    def work() -> None:
        with interrupts_held():
            press_ctrl_c()
            done.append("first")
            press_ctrl_c()
            done.append("second")
        done.append("after")

    with pytest.raises(KeyboardInterrupt):
        work()
    assert done == ["first", "second"]


def test_without_an_interrupt_nothing_comes_and_the_handler_is_the_one_before() -> None:
    before = signal.getsignal(signal.SIGINT)
    with interrupts_held():
        assert signal.getsignal(signal.SIGINT) is not before
    assert signal.getsignal(signal.SIGINT) is before


def test_an_error_in_the_block_goes_before_the_interrupt() -> None:
    before = signal.getsignal(signal.SIGINT)

    def fail() -> None:
        with interrupts_held():
            press_ctrl_c()
            raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        fail()
    assert signal.getsignal(signal.SIGINT) is before


def test_a_process_that_ignores_interrupts_keeps_ignoring_them() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with interrupts_held():
            press_ctrl_c()
    finally:
        signal.signal(signal.SIGINT, before)


def test_outside_the_main_thread_there_is_nothing_to_hold() -> None:
    handlers = []

    def work() -> None:
        with interrupts_held():
            handlers.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert handlers == [signal.getsignal(signal.SIGINT)]


def test_the_first_interrupt_is_noted_and_the_second_one_interrupts() -> None:
    before = signal.getsignal(signal.SIGINT)
    with interrupts_noted() as noted:
        press_ctrl_c()
        assert noted == [signal.SIGINT]
        with pytest.raises(KeyboardInterrupt):
            press_ctrl_c()
    assert signal.getsignal(signal.SIGINT) is before


def test_sigterm_is_noted_alike() -> None:
    with terminations_raised(), interrupts_noted() as noted:
        signal.raise_signal(signal.SIGTERM)
        assert noted == [signal.SIGTERM]
        with pytest.raises(Terminated):
            signal.raise_signal(signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_outside_the_main_thread_nothing_is_noted() -> None:
    noted: list[list[int]] = []

    def work() -> None:
        with interrupts_noted() as own:
            noted.append(own)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert noted == [[]]
