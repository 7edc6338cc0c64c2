"""Kinds that khop names are components that can be loaded, each in its table."""

from __future__ import annotations

import pytest

from khop.config.kinds import FAMILIES
from khop.config.options import composed
from khop.config.section import Section

KINDS = [(path, kind) for path, (family, _) in FAMILIES.items() for kind in family.builtin]


@pytest.mark.parametrize(("path", "kind"), KINDS)
def test_every_kind_is_loaded_with_options_for_its_table(path: str, kind: str) -> None:
    family, default = FAMILIES[path]
    component = family.load(kind)
    assert callable(component.build)
    assert issubclass(composed(Section, component.options), Section)
    assert default is None or default in family.builtin
