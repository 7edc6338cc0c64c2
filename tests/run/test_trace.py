"""What Perfetto and chrome://tracing ask of a trace."""

from __future__ import annotations

import json
from collections import defaultdict
from itertools import pairwise
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from khop.run.profile import chrome_trace, threads_of
from support.synthetic_profiles import records_of

Rank = st.fixed_dictionaries({"waiting": st.floats(0.0, 0.2), "forward": st.floats(0.001, 0.2)})


def events_of(trace: dict[str, object], phase: str) -> list[dict[str, Any]]:
    events = json.loads(json.dumps(trace))["traceEvents"]
    return [event for event in events if event["ph"] == phase]


@given(st.lists(Rank, min_size=1, max_size=3))
def test_bars_have_all_that_viewers_ask_for_and_none_of_a_thread_overlap(
    ranks: list[dict[str, float]],
) -> None:
    lanes: dict[tuple[int, int], list[tuple[float, float]]] = defaultdict(list)
    for event in events_of(chrome_trace(records_of(*ranks)), "X"):
        assert event.keys() == {"ph", "name", "cat", "pid", "tid", "ts", "dur", "args"}
        assert event["ts"] >= 0
        assert event["dur"] > 0
        lanes[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    for bars in lanes.values():
        bars.sort()
        assert all(end <= begin + 1e-3 for (_, end), (begin, _) in pairwise(bars))


def test_every_rank_is_a_process_and_every_thread_has_a_name() -> None:
    records = records_of({}, {})
    assert threads_of(records[0]) == ["MainThread", "khop-worker-0"]
    names = events_of(chrome_trace(records), "M")
    assert {(e["pid"], e["args"]["name"]) for e in names if e["name"] == "process_name"} == {
        (0, "rank 0 (host here)"),
        (1, "rank 1 (host here)"),
    }
    threads = {(e["pid"], e["tid"]): e["args"]["name"] for e in names if e["name"] == "thread_name"}
    assert threads == {
        (pid, tid): name for pid in (0, 1) for tid, name in enumerate(("training", "khop-worker-0"))
    }
    assert {(e["pid"], e["tid"]) for e in events_of(chrome_trace(records), "X")} == set(threads)


def test_bars_say_what_and_of_which_step() -> None:
    bars = events_of(chrome_trace(records_of({}, steps=3, epoch=2)), "X")
    assert {bar["name"] for bar in bars} == {
        "sampling", "gathering", "waiting", "moving", "forward", "backward", "update", "saving",
    }  # fmt: skip
    assert {(bar["args"]["epoch"], bar["args"]["step"]) for bar in bars} == {(0, 0), (0, 1), (1, 0)}
    assert {bar["cat"] for bar in bars if bar["name"] == "forward"} == {"computing"}
