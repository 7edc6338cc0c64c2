"""Presets: runs that come with khop, for `khop train NAME`."""

from __future__ import annotations

from collections.abc import Mapping

from khop.config.read import RawRun

DEPENDENCIES = {"package depends package": 5, "package rev_depends package": 5, "*": 0}
# Tuned on the validation split; docs/debian.md has the results.
_PRESETS: Mapping[str, Mapping[str, object]] = {
    "debian": {
        "graph": "debian",
        "sampler": {"fanouts": [5, 5]},
        "model": {"hidden": 256, "dropout": 0.5, "norm": "layer"},
        "training": {"epochs": 16, "batch_size": 1024, "learning_rate": 3e-3},
    },
    "debian-links": {
        "graph": "debian-typed",
        "task": {"kind": "link-prediction", "target": "package depends package"},
        "links": {"decoder": "mlp"},
        "sampler": {"fanouts": [DEPENDENCIES, DEPENDENCIES]},
        "model": {"hidden": 128, "dropout": 0.0, "norm": "layer", "embedding": 0},
        "training": {"epochs": 10, "batch_size": 8192, "learning_rate": 5e-3},
        "evaluation": {"every": 2},
    },
    "debian-typed": {
        "graph": "debian-typed",
        "sampler": {"fanouts": [5, 5]},
        "model": {"hidden": 256, "dropout": 0.6, "norm": "layer", "embedding": 32},
        "training": {"epochs": 8, "batch_size": 1024, "learning_rate": 3e-3},
    },
}


def preset_names() -> tuple[str, ...]:
    """Return the names of all presets."""
    return tuple(_PRESETS)


def preset(name: str) -> RawRun:
    """Return the preset of this name, which options may change."""
    return RawRun(_PRESETS[name], f"preset {name}")
