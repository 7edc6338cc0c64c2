"""Every argument of the installed torch_geometric is taken, and docs/pyg.md says what becomes of it."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest
from torch.utils.data import DataLoader
from torch_geometric import loader as theirs

from khop import pyg

PAGE = Path(__file__).parents[2] / "docs" / "pyg.md"
ROW = re.compile(r"^\| (`.*`) \| (.*) \| (.*) \|$", re.MULTILINE)
VERDICT = re.compile(r"same|better|not applicable|batches always|khop alone")
NAMES = ["NeighborLoader", "LinkNeighborLoader"]


def arguments(function: object) -> list[str]:
    parameters = inspect.signature(function).parameters.values()  # type: ignore[arg-type]
    return [p.name for p in parameters if p.name != "self" and p.kind is not p.VAR_KEYWORD]


def table() -> dict[str, str]:
    rows = ROW.findall(PAGE.read_text())
    return {name: verdict for names, _, verdict in rows for name in re.findall(r"`(\w+)`", names)}


OURS_ALONE = {"NeighborLoader": ["time_window"], "LinkNeighborLoader": ["exclude", "time_window"]}


@pytest.mark.parametrize("name", NAMES)
def test_the_signature_is_theirs_and_a_few_names_more(name: str) -> None:
    """The same names in the same order with the same defaults; what is new is None and given by name."""
    ours, expected = (inspect.signature(getattr(package, name)).parameters for package in (pyg, theirs))
    own = [p for p in ours.values() if p.kind is p.KEYWORD_ONLY]
    assert [p.name for p in own] == OURS_ALONE[name]
    assert {p.default for p in own} == {None}
    shared = [(p.name, p.default) for p in ours.values() if p.name not in OURS_ALONE[name]]
    assert shared == [(p.name, p.default) for p in expected.values()]


@pytest.mark.parametrize(
    "base",
    [theirs.NeighborLoader, theirs.LinkNeighborLoader, theirs.NodeLoader, theirs.LinkLoader, DataLoader],
)
def test_the_page_lists_every_argument(base: type) -> None:
    """Those of the loaders, of the classes that take their `**kwargs`, and of torch's own loader."""
    assert set(arguments(base)) - set(table()) == set()


def test_the_page_lists_nothing_else_and_judges_every_one() -> None:
    bases = (
        theirs.NeighborLoader,
        theirs.LinkNeighborLoader,
        theirs.NodeLoader,
        theirs.LinkLoader,
        DataLoader,
    )
    known = {argument for base in bases for argument in arguments(base)}
    own = {argument for of_loader in OURS_ALONE.values() for argument in of_loader}
    assert set(table()) - known == own
    assert all(VERDICT.match(verdict) for verdict in table().values())


@pytest.mark.parametrize("name", NAMES)
def test_a_loader_is_one_of_theirs(name: str) -> None:
    assert issubclass(getattr(pyg, name), getattr(theirs, name))


def test_without_torch_geometric_the_way_out_is_named() -> None:
    program = """
import sys
sys.modules["torch_geometric"] = None
import khop.pyg
try:
    khop.pyg.NeighborLoader
except ImportError as error:
    print(error)
"""
    run = [sys.executable, "-c", program]
    finished = subprocess.run(run, capture_output=True, text=True, timeout=120)
    assert finished.stdout == "khop.pyg.NeighborLoader needs torch_geometric: pip install torch_geometric\n"
