"""Components by name: khop's own, and classes of modules that may be imported."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from khop.components import Family, ImportedLater, NoOptions, Permission

FAMILY = Family(
    "model", "khop.models_of_no_package", {"ordered": "collections:OrderedDict", "pair": f"{__name__}:Pair"}
)


@dataclass(frozen=True)
class Pair:
    """A component that is its own options."""

    first: int = 1


class Built:
    """A component without options."""

    @staticmethod
    def build(options: object, context: object) -> tuple[object, object]:
        return options, context


def test_a_dataclass_is_its_own_options() -> None:
    pair = FAMILY.load("pair")
    assert (pair.kind, pair.options) == ("pair", Pair)
    assert pair.build(Pair(3), "context") == Pair(3)
    assert pair.resolve(Pair(3), "context") == Pair(3)


def test_a_class_of_a_module_is_loaded_by_name() -> None:
    built = FAMILY.load(f"{__name__}:Built")
    assert built.options is NoOptions
    assert built.build(NoOptions(), 5) == (NoOptions(), 5)


@pytest.mark.parametrize(
    ("kind", "problem"),
    [
        ("gat", "must be one of ordered, pair, or package.module:Class"),
        ("no such:Name", "must be one of"),
        ("khop_of_nobody.models:Model", "there is no module 'khop_of_nobody'"),
        (f"{__name__}:Missing", "has no 'Missing'"),
        ("ordered", "a component is a class with build"),
    ],
)
def test_what_is_no_component_is_refused(kind: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        FAMILY.load(kind)


def test_code_is_imported_only_with_permission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "foreign_models.py").write_text("raise SystemExit('was imported')")
    with pytest.raises(ValueError, match="give --allow-code foreign_models"):
        FAMILY.load("foreign_models:Model", Permission(("foreign",)))
    with pytest.raises(SystemExit, match="was imported"):
        FAMILY.load("foreign_models:Model", Permission(("foreign_models",)))


def test_a_function_is_imported_at_its_first_call() -> None:
    later = ImportedLater(f"{__name__}:Built.build")
    assert later("options", "context") == ("options", "context")
    with pytest.raises(ValueError, match="no module"):
        ImportedLater("khop_of_nobody:f")(1, 2)
