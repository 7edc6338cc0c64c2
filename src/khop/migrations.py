"""New names of the keys in files that earlier versions wrote.

The files are config.toml and run.toml, state.json of checkpoints, metrics.jsonl and steps.jsonl.

Internal: its names may change in any version. The public ones are in `khop.__all__`.
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
    tables = {name: table for name, table in content.items() if isinstance(table, Mapping)}
    paths = {f"{name}.{key}": value for name, table in tables.items() for key, value in table.items()}
    changed: dict[str, dict[str, object]] = {name: {} for name in tables}
    for path, value in with_new_paths(paths).items():
        name, _, key = path.partition(".")
        changed.setdefault(name, {})[key] = value
    others = {name: value for name, value in content.items() if name not in tables}
    return {**content, **changed, **others}


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
