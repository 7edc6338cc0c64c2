"""What batches cost on the network, step by step and over an epoch."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

SECONDS = "seconds"  # the one count of a batch's traffic that no two runs have alike
EXCHANGING = "exchanging"  # what it is called among the seconds of a step


def values_of(traffic: Mapping[str, float]) -> list[float]:
    """A batch's counts, in the order in which all ranks tell them."""
    return [traffic[name] for name in sorted(traffic)]


def of_ranks(traffic: Mapping[str, float], told: Tensor) -> dict[str, list[float]]:
    """By name what each rank has told of a batch, (ranks, counts), for which this one counted `traffic`."""
    return {
        name: [_plain(value) for value in column.tolist()]
        for name, column in zip(sorted(traffic), told.T, strict=True)
    }


def summed(before: Mapping[str, float], counted: Mapping[str, list[float]]) -> dict[str, float]:
    """The counts of all ranks on top of those before."""
    return {
        name: _plain(before.get(name, 0) + sum(values)) for name, values in counted.items() if name != SECONDS
    }


def step_record(
    seconds: Mapping[str, list[float]], counted: Mapping[str, list[float]]
) -> dict[str, Mapping[str, list[float]]]:
    """What a line of steps.jsonl says of a step's seconds, and of its traffic if there was any."""
    if not counted:
        return {"seconds": seconds}
    counts = {name: values for name, values in counted.items() if name != SECONDS}
    return {"seconds": {**seconds, EXCHANGING: counted[SECONDS]}, "traffic": counts}


def epoch_record(traffic: Mapping[str, float]) -> dict[str, Mapping[str, float]]:
    """What a line of metrics.jsonl says: the sums, and how many of the rows that lie elsewhere were kept.

    Of `hit_rate`, `device_hit_rate` is what was kept on devices.
    """
    if not traffic:
        return {}
    remote = traffic.get("remote_rows", 0)
    if not remote:
        return {"traffic": traffic}
    on_device = traffic["device_rows"]
    kept = {"hit_rate": traffic["kept_rows"] + on_device, "device_hit_rate": on_device}
    return {"traffic": {**traffic, **{name: round(rows / remote, 4) for name, rows in kept.items()}}}


def _plain(value: float) -> float:
    """Whole numbers without a point."""
    return int(value) if value == int(value) else round(value, 6)
