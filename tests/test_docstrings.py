"""Docstrings of the public names: arguments, results, and an example that runs.

The opening paragraph is one sentence. A class or function has the sections `Args:`, one entry per parameter
in the order of the signature, with its default; `Returns:` if it returns something; `Raises:` if it raises an
error or checks an argument; and `Example:`. Examples run with `khop`, `torch`, `np`, and `tmp`, an empty
folder.
"""

from __future__ import annotations

import ast
import doctest
import inspect
import re
import textwrap
from collections.abc import Iterator
from enum import Enum
from importlib import import_module
from pathlib import Path
from types import FunctionType

import numpy as np
import pytest
import torch

import khop
import khop.arguments
import khop.models
import khop.pyg
import khop.testing
from khop.arguments import whole_number

NAMES = (
    *khop._PUBLIC,
    *(f"models.{name}" for name in ("", *khop.models.__all__)),
    *(f"pyg.{name}" for name in ("", *khop.pyg.__all__)),
    *(f"testing.{name}" for name in ("", *khop.testing.SUITES)),
)
SECTION = re.compile(r"^(Args|Returns|Raises|Example):\n((?: .*\n|\n)*)", re.MULTILINE)
ENTRY = re.compile(r"^    \*{0,2}(\w+): (\S.*\n(?:     .*\n)*)", re.MULTILINE)
SENTENCE_END = re.compile(r"(?<!et al)(?<!e\.g)(?<!i\.e)[.?!](?=\s|$)")


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


METHODS = (
    *(model.for_graph for model in (khop.models.SAGE, khop.models.GCN, khop.models.GIN)),
    *(khop.TensorBoard.log, khop.NodeTuples.of_graph),
)


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.__qualname__)
def test_the_parameters_of_a_public_method_are_described(method: object) -> None:
    assert list(parameter_faults(method)) == []


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


def test_faults_of_sentences_defaults_and_errors_are_found(namespace: dict[str, object]) -> None:
    class Scaled:
        """Numbers (see Gauss et al. 1801). They are scaled.

        Args:
            values: Numbers to multiply.
            by: Factor.
        """

        def __init__(self, values: list[int], by: int = 2) -> None:
            self.values = [value * whole_number("by", by) for value in values]

    found = "\n".join(faults(Scaled, namespace))
    for fault in ("several sentences", "The default of by is missing", "Raises is missing"):
        assert fault in found
    Scaled.__doc__ = """Numbers (see Gauss et al. 1801).

        Args:
            values: Numbers to multiply.
            by: Factor, default 2.
        Raises:
            ValueError: `by` is not a whole number.
        Example:
            >>> 2 * 2
            4
        """
    assert list(faults(Scaled, namespace)) == []


def faults(value: object, namespace: dict[str, object]) -> Iterator[str]:
    """Yield each difference between a docstring and the code, and the output of a failed example."""
    text = inspect.cleandoc(value.__doc__ or "") + "\n"
    sections = dict(SECTION.findall(text))
    if len(SENTENCE_END.findall(text.partition("\n\n")[0])) > 1:
        yield "The opening paragraph has several sentences"
    yield from parameter_faults(value)
    if "Raises" not in sections and any(map(_raises, _makers(value))):
        yield "Raises is missing"
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


def parameter_faults(value: object) -> Iterator[str]:
    """Yield each difference between the section `Args:` and the signature."""
    sections = dict(SECTION.findall(inspect.cleandoc(value.__doc__ or "") + "\n"))
    entries, parameters = dict(ENTRY.findall(sections.get("Args", ""))), parameters_of(value)
    if list(entries) != list(parameters):
        yield f"Args are {list(entries)}, the signature has {list(parameters)}"
    for name, parameter in parameters.items():
        if parameter.default is not parameter.empty and "default" not in entries.get(name, "").lower():
            yield f"The default of {name} is missing"


def parameters_of(value: object) -> dict[str, inspect.Parameter]:
    """Return the parameters of a class or function. Protocols and enums have none."""
    if not callable(value) or (isinstance(value, type) and issubclass(value, Enum)):
        return {}
    try:
        parameters = dict(inspect.signature(value).parameters)
    except ValueError:  # exceptions without an `__init__` in Python
        return {}
    parameters.pop("self", None)  # of a method of a class
    # `args` and `kwargs` alone are those of torch.nn.Module or of a protocol.
    return {} if set(parameters) == {"args", "kwargs"} else parameters


def _makers(value: object) -> Iterator[FunctionType]:
    """Yield a function itself, or the functions of its package that initialize an instance of a class."""
    if not isinstance(value, type):
        yield from filter(inspect.isfunction, [inspect.unwrap(value) if callable(value) else value])
        return
    package = value.__module__.partition(".")[0]
    for base in (base for base in value.__mro__ if base.__module__.partition(".")[0] == package):
        functions = [vars(base).get(name) for name in ("__init__", "__post_init__")]
        written = [f for f in filter(inspect.isfunction, functions) if f.__module__ == base.__module__]
        yield from (f for f in written if f.__code__.co_filename != "<string>")  # not made by `dataclass`


def _raises(function: FunctionType, seen: frozenset[FunctionType] = frozenset()) -> bool:
    """Return True if a function raises, or refers to one of its module or of `khop.arguments` that does."""
    nodes = list(ast.walk(ast.parse(textwrap.dedent(inspect.getsource(function)))))
    if any(isinstance(node, ast.Raise) for node in nodes):
        return True
    named = [function.__globals__.get(node.id) for node in nodes if isinstance(node, ast.Name)]
    modules, seen = (function.__module__, khop.arguments.__name__), seen | {function}
    found = {f for f in filter(inspect.isfunction, named) if f.__module__ in modules} - seen
    return any(_raises(inspect.unwrap(f), seen) for f in found)


def _returns(function: FunctionType) -> bool:
    """Return True unless a function returns None, or a context manager without a value."""
    return inspect.signature(function).return_annotation not in ("None", "Iterator[None]")
