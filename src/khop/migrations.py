"""New names of the keys in files that earlier versions wrote.

The files are config.toml and run.toml, state.json of checkpoints, metrics.jsonl and steps.jsonl.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Renamed:
    """A renamed key, by the path "table.key", and its renamed values."""

    old: str
    new: str
    values: Mapping[str, str] = field(default_factory=dict)  # old value -> new value; others stay


RENAMED = (
    Renamed("links.rivals", "links.eval_negatives"),
    Renamed("links.per_link", "links.negatives_per_positive"),
    Renamed("sampler.keep", "sampler.temporal_strategy", {"any": "sample"}),
    Renamed("model.learned_rows", "model.embedding_update"),
    Renamed("parts.device_bytes", "gpu.cache"),
    Renamed("seconds.keeping", "seconds.saving"),
    Renamed("traffic.wanted_rows", "traffic.needed_rows"),
    Renamed("traffic.kept_rows", "traffic.host_cache_rows"),
    Renamed("traffic.device_rows", "traffic.device_cache_rows"),
    Renamed("traffic.asked_rows", "traffic.requested_rows"),
    Renamed("traffic.asked_bytes", "traffic.requested_bytes"),
)
_BY_OLD_NAME = {entry.old: entry for entry in RENAMED}


def with_new_names(content: Mapping[str, object]) -> dict[str, object]:
    """Rename the keys in the tables of a file, also into another table; their order stays.

    If a table has a key under both names, both stay, and the check of the file reports the old one.
    """
    paths = {
        f"{name}.{key}": value
        for name, table in content.items()
        if isinstance(table, Mapping)
        for key, value in table.items()
    }
    renamed = with_new_paths(paths)
    changed = {name: {} if isinstance(table, Mapping) else table for name, table in content.items()}
    for path, value in renamed.items():
        name, _, key = path.partition(".")
        table = changed.setdefault(name, {})
        if isinstance(table, dict):
            table[key] = value
    return changed


def with_new_paths(settings: Mapping[str, object]) -> dict[str, object]:
    """Rename keys that are dotted paths, as in the settings of a checkpoint; their order stays."""
    renamed: dict[str, object] = {}
    for path, value in settings.items():
        entry = _BY_OLD_NAME.get(path)
        if entry is None or entry.new in settings:
            renamed[path] = value
        else:
            renamed[entry.new] = entry.values.get(value, value) if isinstance(value, str) else value
    return renamed
