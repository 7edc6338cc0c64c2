"""Every preset is a run over a built-in graph."""

from __future__ import annotations

import pytest

from khop.config.presets import preset, preset_names
from khop.config.read import checked
from khop.datasets.builtin import builtin_names


@pytest.mark.parametrize("name", preset_names())
def test_every_preset_is_a_run(name: str) -> None:
    assert checked(preset(name)).graph in builtin_names()
