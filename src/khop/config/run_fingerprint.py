"""The fingerprint of a run: the settings that must agree between ranks, and with a resumed checkpoint."""

from __future__ import annotations

from collections.abc import Mapping

import khop
from khop.config.fields import run_fields, value_at
from khop.config.values import RunConfig

_GPU = {"gpu.topology", "gpu.features", "gpu.cache", "gpu.launches"}
# Settings of the machine and of the output. They do not change the identity of a run.
MACHINE = frozenset({"device", "threads", "compute_threads", "prefetch", "prefetch_bytes", "gather", *_GPU})
# Settings of the communication between processes, and of the placement of the graph.
_CACHES = {"parts.cache_bytes", "parts.cache_by"}
_PARTS = {"parts.placement", "parts.lanes", *_CACHES}
_SERVERS = {
    f"servers.{name}"
    for name in (
        "addresses", "token_file", "ca", "client_cert", "client_key", "insecure", "deadline", "attempt",
    )
}  # fmt: skip
TOGETHER = frozenset({"deadline", "interface", "allow_public", *_PARTS, *_SERVERS})
NEUTRAL = (
    MACHINE
    | TOGETHER
    | {
        "tensorboard",
        "logger",
        "training.micro_batches",
        "checkpoint.steps",
        "checkpoint.minutes",
        "checkpoint.keep",
        "checkpoint.best",
    }
)
# Settings that may change when a run is resumed.
RESUMABLE = NEUTRAL | {"training.epochs", "training.patience"}


def facts_of(config: RunConfig, graph_fingerprint: str) -> Mapping[str, str]:
    """Return every setting that decides the course of a run, by dotted path, with graph and khop version.

    The graph is compared by its content, not by its path.
    """
    free = RESUMABLE | {"graph", "out"}
    if config.training.schedule != "constant":  # then every update depends on the number of epochs
        free -= {"training.epochs"}
    deciding = [entry.path for entry in run_fields(type(config)) if entry.path not in free]
    settings = {path: str(value_at(config, path)) for path in deciding}
    return {**settings, "graph": graph_fingerprint, "khop": khop.__version__}
