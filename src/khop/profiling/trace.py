"""Export of a profile as Chrome trace events, for Perfetto and chrome://tracing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from khop.profiling.records import RankRecord

Event = dict[str, object]
_MAIN = "MainThread"


def chrome_trace(records: Sequence[RankRecord]) -> dict[str, object]:
    """Return trace events: one process per rank, with its training thread and its sampler threads.

    Times are in microseconds from the first event of any rank. Events without duration are left out.
    """
    spans = [span for record in records for step in record.steps for span in step.spans]
    zero = min((span.begun for span in spans), default=0.0)
    events = [event for record in records for event in (*_names(record), *_bars(record, zero))]
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def threads_of(record: RankRecord) -> list[str]:
    """Return the names of the threads: the training thread, then the sampler threads."""
    names = {span.thread for step in record.steps for span in step.spans}
    return sorted(names, key=lambda name: (name != _MAIN, len(name), name))


def _names(record: RankRecord) -> Iterator[Event]:
    pid = record.rank
    named = {"name": f"rank {record.rank} (host {record.host})"}
    yield {"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": named}
    yield {"ph": "M", "name": "process_sort_index", "pid": pid, "tid": 0, "args": {"sort_index": pid}}
    for number, thread in enumerate(threads_of(record)):
        shown = "training" if thread == _MAIN else thread
        yield {"ph": "M", "name": "thread_name", "pid": pid, "tid": number, "args": {"name": shown}}
        yield {
            "ph": "M",
            "name": "thread_sort_index",
            "pid": pid,
            "tid": number,
            "args": {"sort_index": number},
        }


def _bars(record: RankRecord, zero: float) -> Iterator[Event]:
    numbers = {thread: number for number, thread in enumerate(threads_of(record))}
    for step in record.steps:
        for span in step.spans:
            # Round both ends to nanoseconds, so that adjacent spans stay adjacent and do not overlap.
            begun, ended = (round((moment - zero) * 1e9) for moment in (span.begun, span.ended))
            if ended > begun:
                yield {
                    "ph": "X",
                    "name": span.part or span.stage,
                    "cat": span.stage,
                    "pid": record.rank,
                    "tid": numbers[span.thread],
                    "ts": begun / 1000,
                    "dur": (ended - begun) / 1000,
                    "args": {"epoch": step.epoch, "step": step.step},
                }
