"""Docstrings of the public names: arguments, results, and an example that runs.

A class or function has the sections `Args:`, one entry per parameter in the order of the signature,
`Returns:` if it returns something, and `Example:`. Examples run with `khop`, `torch`, `np`, and `tmp`, an
empty folder.
"""

from __future__ import annotations

import doctest
import inspect
import re
from collections.abc import Iterator
from enum import Enum
from importlib import import_module
from pathlib import Path
from types import FunctionType

import numpy as np
import pytest
import torch

import khop
import khop.models
import khop.pyg
import khop.testing

NAMES = (
    *khop._PUBLIC,
    *(f"models.{name}" for name in ("", *khop.models.__all__)),
    *(f"pyg.{name}" for name in ("", *khop.pyg.__all__)),
    *(f"testing.{name}" for name in ("", *khop.testing.SUITES)),
)
SECTION = re.compile(r"^(Args|Returns|Raises|Example):\n((?: .*\n|\n)*)", re.MULTILINE)
ENTRY = re.compile(r"^    \*{0,2}(\w+): \S", re.MULTILINE)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for the built-in graphs, which the first example writes."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def namespace(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    """The names that examples may use."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KHOP_CACHE", str(cache))
    return {"__name__": "__main__", "khop": khop, "torch": torch, "np": np, "tmp": tmp_path}


LONG = ("load_run",)  # its example trains a run by the command
CASES = [pytest.param(name, marks=pytest.mark.long) if name in LONG else name for name in NAMES]


@pytest.mark.parametrize("name", CASES)
def test_the_docstring_of_a_public_name_is_complete(name: str, namespace: dict[str, object]) -> None:
    module, _, attribute = f"khop.{name}".rpartition(".")
    value = getattr(import_module(module), attribute) if attribute else import_module(module)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        found = list(faults(value, namespace))
    assert found == []


def test_each_fault_of_a_docstring_is_found(namespace: dict[str, object]) -> None:
    def scaled(values: list[int], by: int = 2) -> list[int]:
        """Multiply numbers.

        Args:
            values: Numbers to multiply.
        Example:
            >>> 2 * 2
            5
        """
        return [value * by for value in values]

    found = "\n".join(faults(scaled, namespace))
    for fault in ("['values'], the signature has ['values', 'by']", "Returns is missing", "Got:\n    4"):
        assert fault in found
    scaled.__doc__ = None
    assert "Example is missing" in "\n".join(faults(scaled, namespace))


def faults(value: object, namespace: dict[str, object]) -> Iterator[str]:
    """Yield each difference between a docstring and the signature, and the output of a failed example."""
    sections = dict(SECTION.findall(inspect.cleandoc(value.__doc__ or "") + "\n"))
    described, parameters = ENTRY.findall(sections.get("Args", "")), list(parameters_of(value))
    if described != parameters:
        yield f"Args are {described}, the signature has {parameters}"
    if "Returns" not in sections and inspect.isfunction(value) and _returns(value):
        yield "Returns is missing"
    if ">>> " not in sections.get("Example", ""):
        yield "Example is missing"
        return
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    runner, output = doctest.DocTestRunner(verbose=False, optionflags=flags), list[str]()
    parsed = doctest.DocTestParser().get_doctest(sections["Example"], namespace, "example", None, 0)
    if runner.run(parsed, out=output.append).failed:
        yield "".join(output)


def parameters_of(value: object) -> Iterator[str]:
    """Yield the parameters of a class or function. Protocols and enums have none."""
    if not callable(value) or (isinstance(value, type) and issubclass(value, Enum)):
        return
    try:
        parameters = inspect.signature(value).parameters
    except ValueError:  # exceptions without an `__init__` in Python
        return
    if set(parameters) != {"args", "kwargs"}:  # of torch.nn.Module or a protocol
        yield from parameters


def _returns(function: FunctionType) -> bool:
    """Return True unless a function returns None, or a context manager without a value."""
    return inspect.signature(function).return_annotation not in ("None", "Iterator[None]")
