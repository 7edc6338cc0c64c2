"""The run argument: a file, a preset, or options alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from khop.cli.which_run import written
from khop.config.presets import preset, preset_names
from khop.config.read import read_toml


def test_a_run_is_a_preset_a_file_or_its_options(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text('graph = "shop"\n')
    assert written(str(path), {}, "khop train", ()) == read_toml(path)
    assert written("debian", {}, "khop train", ()) == preset("debian")
    assert written(None, {"graph": "shop"}, "khop train", ()).values == {}


def test_without_a_run_the_error_says_how_to_name_one() -> None:
    with pytest.raises(ValueError, match=r"use khop train debian, khop train run\.toml"):
        written(None, {"epochs": 3}, "khop train", ())
    with pytest.raises(ValueError, match=r"missing\.toml: no such file; give a run\.toml") as raised:
        written("missing.toml", {}, "khop train", ())
    assert all(name in str(raised.value) for name in preset_names())
