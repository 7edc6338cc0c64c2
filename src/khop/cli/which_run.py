"""The run argument of commands: a file, a preset of khop, or only options."""

from __future__ import annotations

from pathlib import Path

from khop.cli.options import Options
from khop.config.presets import preset, preset_names
from khop.config.read import RawRun, read_toml


def written(source: str | None, options: Options, command: str) -> RawRun:
    """Return the run of this name, before its options are applied. Raises ValueError if there is none."""
    if source is None and "graph" not in options:
        raise ValueError(
            f"no run is given: use {command} debian, {command} run.toml, or {command} --graph FOLDER"
        )
    if source is None:
        return RawRun({}, "the command line")
    if source in preset_names():
        return preset(source)
    if not Path(source).is_file():
        presets = ", ".join(preset_names())
        raise ValueError(f"{source}: no such file; give a run.toml, or a preset: {presets}")
    return read_toml(Path(source))
