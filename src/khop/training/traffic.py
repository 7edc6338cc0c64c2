"""Network traffic and cache hits of batches, per step and per epoch."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from khop.loading.source import SECONDS, SERVER

EXCHANGING = "exchanging"  # name of those seconds in the record of a step
OVERFLOWS = "overflows"  # batches that exceeded the recorded shapes


def values_of(traffic: Mapping[str, float]) -> list[float]:
    """List a batch's counts in the order in which ranks exchange them."""
    return [traffic[name] for name in sorted(traffic)]


def added(before: Mapping[str, float], counted: Mapping[str, float]) -> dict[str, float]:
    """Add the counts of a micro-batch to those of earlier ones in the step; the server is the last one."""
    return {name: value if name == SERVER else before.get(name, 0) + value for name, value in counted.items()}


def of_ranks(traffic: Mapping[str, float], gathered: Tensor) -> dict[str, list[float]]:
    """Map each name in `traffic` to all ranks' values of a batch, from gathered (ranks, counts)."""
    return {
        name: [_plain(value) for value in column.tolist()]
        for name, column in zip(sorted(traffic), gathered.T, strict=True)
    }


def summed(before: Mapping[str, float], counted: Mapping[str, list[float]]) -> dict[str, float]:
    """Add the counts of all ranks to `before`."""
    return {
        name: _plain(before.get(name, 0) + sum(values))
        for name, values in counted.items()
        if name not in (SECONDS, SERVER)
    }


def step_record(
    seconds: Mapping[str, list[float]], counted: Mapping[str, list[float]]
) -> dict[str, Mapping[str, list[float]]]:
    """Return the part of a steps.jsonl line with a step's seconds, and its traffic if there is any."""
    counts = {name: values for name, values in counted.items() if name not in (SECONDS, OVERFLOWS)}
    if not counts and SECONDS not in counted:
        return {"seconds": seconds}
    exchanging = {EXCHANGING: counted[SECONDS]} if SECONDS in counted else {}  # caches without an exchange
    return {"seconds": {**seconds, **exchanging}, "traffic": counts}


def epoch_record(traffic: Mapping[str, float]) -> dict[str, object]:
    """Return the part of a metrics.jsonl line with overflows and traffic: the sums, and hit rates of caches.

    `hit_rate` is the fraction of remote rows found in a cache; `device_hit_rate` is the part found on
    devices. For a graph that is not partitioned, the latter is the fraction of the rows of cached columns.
    """
    counts = {name: count for name, count in traffic.items() if name != OVERFLOWS}
    overflows = {OVERFLOWS: traffic[OVERFLOWS]} if OVERFLOWS in traffic else {}
    return {**overflows, **({"traffic": {**counts, **_hit_rates(counts)}} if counts else {})}


def _hit_rates(traffic: Mapping[str, float]) -> dict[str, float]:
    needed, remote = traffic.get("needed_rows", 0), traffic.get("remote_rows", 0)
    if "remote_rows" not in traffic and needed:
        return {"device_hit_rate": round(traffic["device_cache_rows"] / needed, 4)}
    if not remote:
        return {}
    on_device = traffic["device_cache_rows"]
    found = {"hit_rate": traffic["host_cache_rows"] + on_device, "device_hit_rate": on_device}
    return {name: round(rows / remote, 4) for name, rows in found.items()}


def _plain(value: float) -> float:
    """Convert integral values to int; round others."""
    return int(value) if value == int(value) else round(value, 6)
