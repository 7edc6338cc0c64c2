from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context

from hypothesis import given
from hypothesis import strategies as st

from khop.kernels.turns import PLACE, Turns


def placed(place: int, turns: Turns, order: list[int]) -> None:
    PLACE.set(place)
    with turns.taken():
        order.append(place)


@given(st.lists(st.integers(0, 5), min_size=1, max_size=8))
def test_the_lowest_place_of_those_that_wait_goes_first(places: list[int]) -> None:
    turns, order = Turns(), list[int]()
    with ThreadPoolExecutor(len(places)) as pool:
        with turns.taken():
            waiting = [pool.submit(copy_context().run, placed, place, turns, order) for place in places]
            while len(turns._waiting) < len(places):
                time.sleep(0.001)
            assert not order
        for one in waiting:
            one.result(timeout=60)
    assert order == sorted(places)


def test_only_one_has_a_turn_and_an_error_ends_it() -> None:
    turns, inside, most = Turns(), [0], [0]

    def work() -> None:
        for _ in range(20):
            try:
                with turns.taken():
                    inside[0] += 1
                    most[0] = max(most[0], inside[0])
                    time.sleep(1e-5)  # another thread would come in here
                    inside[0] -= 1
                    raise KeyError
            except KeyError:
                continue

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert most == [1]
    assert not turns._is_taken
    assert not turns._waiting
