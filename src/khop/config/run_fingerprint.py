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
# Settings that earlier versions lack, with their defaults: a run of these resumes.
ADDED: Mapping[str, object] = {
    "gather": "ahead",
    "model.embedded_types": "missing",
    "model.unknown": 0.0,
    "optimizer.kind": "adam",
    "optimizer.beta1": 0.9,
    "optimizer.beta2": 0.999,
    "optimizer.eps": 1e-8,
    "optimizer.amsgrad": False,
    "optimizer.clip_norm": 0.0,
    "training.plateau_factor": 0.5,
    "training.plateau_patience": 2,
    "links.margin": 1.0,
    "links.temperature": 1.0,
    "links.negatives_group": 1,
    "links.shared_negatives": 0,
    "links.hard_negatives": 0,
    "links.hard_every": 1,
    "links.filtered": False,
    "links.ranking": False,
    "links.relation": None,
    "links.relations": 0,
    "links.corrupt": "destination",
    "links.spot_target": 0,
    "model.relation": None,
    "model.inputs": "encoded",
    "model.edge_column": None,
    "task.loss": "cross-entropy",
    "task.gamma": 2.0,
    "task.class_weights": "none",
    "task.label_smoothing": 0.0,
    "evaluation.batch_edges": 1 << 20,
}
# The same for sums alone: other rules had options of these names before.
_SUMS = ("sum", "symmetric-sum")
_ADDED_TO_SUMS: Mapping[str, object] = {
    "sampler.rule.inner": None,
    "sampler.rule.layer_dependent": False,
    "sampler.rule.kappa": 1,
}


def facts_of(config: RunConfig, graph_fingerprint: str) -> Mapping[str, str]:
    """Return every setting that decides the course of a run, by dotted path, with graph and khop version.

    The graph is compared by its content, not by its path.
    """
    free = RESUMABLE | {"graph", "out"}
    if config.training.schedule != "constant":  # then every update depends on the number of epochs
        free -= {"training.epochs"}
    if not config.training.drop_last:  # like runs from before this option existed
        free |= {"training.drop_last"}
    if config.links.split == "auto":  # like runs from before; the graph, which is compared, decides
        free |= {"links.split"}
    paths = {entry.path for entry in run_fields(type(config))}
    is_sum = value_at(config, "sampler.rule.kind") in _SUMS
    added = {**ADDED, **_ADDED_TO_SUMS} if is_sum else ADDED
    free |= {name for name, value in added.items() if name in paths and value_at(config, name) == value}
    for name in ("sampler.kind", "sampler.rule.kind"):  # the same for components
        free |= {name} if value_at(config, name) is None else set()
    deciding = [entry.path for entry in run_fields(type(config)) if entry.path not in free]
    settings = {path: str(value_at(config, path)) for path in deciding}
    return {**settings, "graph": graph_fingerprint, "khop": khop.__version__}
