"""Components are found by their kind: khop's own, installed ones, and others by name, if that is allowed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import khop
from khop.components import ANY_NAMED, FAMILIES, Family, NoOptions, Permission
from khop.data.importers import IMPORTERS
from khop.data.partition.methods import PARTITIONERS
from khop.data.partition.partitioners import RangeParts

FAMILY = Family("khop_test.things", {"own": "khop.data.partition.partitioners:RangeParts"})
MODULE = """
from dataclasses import dataclass
print("loaded")

class Built:
    @staticmethod
    def build(options, context):
        return options, context

@dataclass(frozen=True)
class Value:
    size: int = 3
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """An installed package with an entry point, in a module of a name of its own."""
    name = write_package(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return name


def write_package(folder: Path) -> str:
    """Write a module and the declaration of its entry points, as an installation does; return its name."""
    name = f"khop_test_{abs(hash(folder))}"
    (folder / f"{name}.py").write_text(MODULE)
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    entries = f"built = {name}:Built\ngone = {name}:Gone\nown = {name}:Built\n"
    (info / "entry_points.txt").write_text(f"[khop_test.things]\n{entries}")
    return name


def test_installed_kinds_are_listed_and_loaded_only_when_they_are_named(
    package: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert set(FAMILY.kinds()) == {"own", "built", "gone"}
    assert capsys.readouterr().out == ""
    component = FAMILY.load("built", Permission(()))  # installed: no permission is needed
    assert capsys.readouterr().out == "loaded\n"
    assert component.build(component.options(), 5) == (NoOptions(), 5)
    assert FAMILY.load("own").build == RangeParts.build
    with pytest.raises(
        ValueError, match=f"{package}:Gone, which {package} declares in khop_test.things, cannot"
    ):
        FAMILY.load("gone")


@pytest.mark.parametrize("place", ["", ".", None])
def test_a_package_in_the_working_directory_is_not_an_installed_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], place: str | None
) -> None:
    name = write_package(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path) if place is None else place, *sys.path])
    assert FAMILY.kinds() == ("own",)
    for kind in ("built", f"{name}:Built"):
        with pytest.raises(
            ValueError, match=r"must be own, or|code named by a run folder is not imported without permission"
        ):
            FAMILY.load(kind)
    assert capsys.readouterr().out == ""


def test_the_working_directory_is_on_the_path_only_while_a_component_is_imported_and_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = write_package(tmp_path)
    (tmp_path / f"{name}_beside.py").write_text("made = 7\n")
    body = f"import {name}_beside; return {name}_beside.made"
    late = f"class Late:\n    @staticmethod\n    def build(options, context): {body}\n"
    (tmp_path / f"{name}.py").write_text(late)
    monkeypatch.chdir(tmp_path)
    before = list(sys.path)
    component = FAMILY.load(f"{name}:Late", Permission((name,)))
    assert sys.path == before
    assert FAMILY.kinds() == ("own",)
    assert component.build(component.options(), None) == 7
    assert sys.path == before


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("from {name} import gone", r"{name} cannot be imported: cannot import name 'gone'.*; correct it"),
        ("import no_such_package", r"cannot be imported: No module named 'no_such_package'; install it"),
        ("class Built(", r"{name} cannot be imported: '\(' was never closed .*; correct it"),
    ],
)
def test_a_module_that_cannot_be_imported_is_not_called_a_missing_one(
    package: str, tmp_path: Path, source: str, reason: str
) -> None:
    (tmp_path / f"{package}.py").write_text(source.format(name=package))
    with pytest.raises(ValueError, match=reason.format(name=package)):
        FAMILY.load(f"{package}:Built", ANY_NAMED)
    with pytest.raises(ValueError, match=f"^{package}:Built, which {package} declares .* cannot be loaded"):
        FAMILY.load("built")


def test_a_dataclass_is_its_own_options(package: str) -> None:
    component = FAMILY.load(f"{package}:Value", ANY_NAMED)
    assert component.build(component.options(4), None).size == 4


@pytest.mark.parametrize(
    ("packages", "is_allowed"),
    [
        (None, True),
        ((), False),
        (("other",), False),
        (("extension.test_rul",), False),
        (("other", "extension"), True),
        (("extension.test_rule",), True),
        (("extension.test_rule.inner",), False),
    ],
)
def test_permission_is_for_a_package_and_its_modules(
    packages: tuple[str, ...] | None, is_allowed: bool
) -> None:
    permission = ANY_NAMED if packages is None else Permission(packages)
    if is_allowed:
        permission.check("extension.test_rule")
        return
    with pytest.raises(ValueError, match=r"not imported without permission; .* give --allow-code extension$"):
        permission.check("extension.test_rule")


@pytest.mark.parametrize("name", ["", "my_package:Model", "./my_package", "my_package."])
def test_permission_names_a_package(name: str) -> None:
    with pytest.raises(ValueError, match="must be a package or a module, such as my_package"):
        Permission(("other", name))


@pytest.mark.parametrize("kind", ["", "a", "a:", ":b", "a b:c", "os.path", "../x:y", "a:b:c"])
def test_other_texts_are_no_kinds(kind: str) -> None:
    with pytest.raises(ValueError, match=r"must be own, or package\.module:Class"):
        FAMILY.load(kind)


def test_khops_own_components_exist() -> None:
    for family in (*FAMILIES.values(), PARTITIONERS, IMPORTERS):
        for kind in family.builtin:
            assert callable(family.load(kind).build)


def test_options_of_khops_components_need_no_torch() -> None:
    source = Path(khop.__file__).parents[1]
    code = (
        "import sys\nfrom khop.run.run_type import run_type\nfrom khop.run.run_type import fields_of\n"
        "for kind in ('sage', 'rgcn'):\n"
        "    fields_of(run_type({'model': {'kind': kind}, 'sampler': {'rule': {'kind': 'weighted'}}}))\n"
        "from khop.data.importers import IMPORTERS\nIMPORTERS.load('ogb')\n"
        "sys.exit('torch' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env={"PYTHONPATH": str(source)})
