"""What makes a run this run: compared between its ranks, and with a checkpoint when it goes on."""

from __future__ import annotations

from collections.abc import Mapping

import khop
from khop.config.fields import run_fields, value_at
from khop.config.values import RunConfig

# On what machine a run is carried out, and how it is kept: none of these makes it another run.
MACHINE = frozenset({"device", "threads", "compute_threads", "prefetch", "prefetch_bytes"})
# How its processes wait for one another, where they are reached, and who has what of the graph.
_CACHES = {"parts.cache_bytes", "parts.device_bytes", "parts.cache_by"}
_PARTS = {"parts.placement", "parts.lanes", *_CACHES}
TOGETHER = frozenset({"deadline", "interface", "allow_public", *_PARTS})
HOW_NOT_WHAT = (
    MACHINE
    | TOGETHER
    | {
        "tensorboard",
        "checkpoint.steps",
        "checkpoint.minutes",
        "checkpoint.keep",
    }
)
# What a run may change on the way and still be the same run.
RESUMABLE = HOW_NOT_WHAT | {"training.epochs", "training.patience"}


def facts_of(config: RunConfig, graph_fingerprint: str) -> Mapping[str, str]:
    """Every setting that decides a run's course, by its dotted path, with the graph and khop's version.

    The graph counts by its content, not by where it lies.
    """
    free = RESUMABLE | {"graph", "out"}
    if config.training.schedule != "constant":  # then every update depends on how many there are
        free -= {"training.epochs"}
    if not config.training.drop_last:  # as in runs of before there was the choice
        free |= {"training.drop_last"}
    deciding = [entry.path for entry in run_fields() if entry.path not in free]
    settings = {path: str(value_at(config, path)) for path in deciding}
    return {**settings, "graph": graph_fingerprint, "khop": khop.__version__}
