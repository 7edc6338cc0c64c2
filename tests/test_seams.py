"""No module asks a store, a sampler, a source or a loader for its class or for more than its protocol."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest

from khop.api.loader import Loader
from khop.api.open_graph import Graph
from khop.graph.features.store import FeatureStore, FeatureStoreBase
from khop.graph.store import GraphStore, GraphStoreBase
from khop.loading.source import BatchSource
from khop.sampling.sampler import Sampler, SamplerBase
from support.syntax_trees import SOURCE, trees
from support.typed_asks import asks_of

ROOT = Path(__file__).parents[1]
SEAMS = (GraphStoreBase, FeatureStoreBase, SamplerBase, Graph, Loader)
PROTOCOLS = (GraphStore, FeatureStore, Sampler, BatchSource)
SOURCES = {"LocalSource", "LaneSource"}  # of batches; their protocol has no base class
DEFINING = {
    "api/open_graph.py", "graph/features/store.py", "graph/store.py",
    "loading/source.py", "sampling/sampler.py",
}  # fmt: skip
ASKS = {"isinstance", "issubclass", "getattr", "hasattr", "cast", "type"}
# Questions that annotations alone do not show.
ASKING = """from typing import cast


class Store:
    size = 1


class Csc(Store):
    pass


def made() -> Store:
    return Csc()


def ask(value: object, stores: dict[str, Store]) -> bool:
    store = made()
    if isinstance(store, Csc):  # found
        return True
    if hasattr(stores["a"], "lanes"):  # found
        return True
    found = [getattr(each, "lanes", None) for each in stores.values()]  # found
    if type(stores["a"]).__name__ == "Csc":  # found
        return True
    other = cast(Csc, value)  # found
    return isinstance(value, str) and bool(found) and other.size == 1
"""


def _may_ask(node: ast.AST) -> bool:
    """Return True for a call or a pattern that may ask for a class."""
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and node.func.id in ASKS
    return isinstance(node, ast.MatchClass)


def is_of_a_seam(found: object) -> bool:
    """Return True for a class of stores, samplers, sources or loaders, or for one of their protocols."""
    if not isinstance(found, type):
        return False
    return found in PROTOCOLS or issubclass(found, SEAMS) or found.__name__ in SOURCES


class Asks(ast.NodeVisitor):
    """The questions of one module, with line and text."""

    def __init__(self, tree: ast.Module, module: ModuleType, fields: dict[str, bool]) -> None:
        self.found: list[tuple[int, str]] = []
        self._module = module
        self._fields = fields  # names of attributes that hold a store, a sampler, a source or a loader
        self._scopes: list[dict[str, bool]] = [{}]
        self._own: list[dict[str, bool]] = [{}]  # fields of the class around
        self.visit(tree)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._own.append({name: self._names_a_seam(annotation) for name, annotation in members(node)})
        self.generic_visit(node)
        self._own.pop()

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        if not any(map(_may_ask, ast.walk(node))):
            return
        arguments = (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
        scope = {each.arg: self._names_a_seam(each.annotation) for each in arguments}
        for inner in ast.walk(node):
            if isinstance(inner, ast.AnnAssign) and isinstance(inner.target, ast.Name):
                scope[inner.target.id] = self._names_a_seam(inner.annotation)
        self._scopes.append(scope)
        self.generic_visit(node)
        self._scopes.pop()

    def visit_Call(self, node: ast.Call) -> None:
        self.generic_visit(node)
        if isinstance(node.func, ast.Name) and node.func.id in ASKS and any(map(self._is_seam, node.args)):
            self.found.append((node.lineno, ast.unparse(node)))

    def visit_MatchClass(self, node: ast.MatchClass) -> None:
        self.generic_visit(node)
        if self._names_a_seam(node.cls):
            self.found.append((node.lineno, ast.unparse(node)))

    def _is_seam(self, argument: ast.expr) -> bool:
        """Return True for a class of a seam, or for a value that is annotated as one."""
        if isinstance(argument, ast.Attribute):
            is_own = isinstance(argument.value, ast.Name) and argument.value.id == "self"
            fields = {**self._fields, **self._own[-1]} if is_own else self._fields
            return fields.get(argument.attr, False)
        if isinstance(argument, ast.Name) and any(argument.id in scope for scope in self._scopes):
            return next(scope[argument.id] for scope in reversed(self._scopes) if argument.id in scope)
        return self._names_a_seam(argument)

    def _names_a_seam(self, annotation: ast.expr | None) -> bool:
        return any(is_of_a_seam(each) for each in named(annotation, self._module))


def named(annotation: ast.expr | None, module: ModuleType) -> Iterator[object]:
    """The objects that the names of an annotation mean in a module."""
    for node in ast.walk(annotation) if annotation is not None else ():
        if isinstance(node, ast.Name):
            yield getattr(module, node.id, None)


def members(node: ast.ClassDef) -> Iterator[tuple[str, ast.expr | None]]:
    """Names and annotations of a class's fields and properties."""
    for member in node.body:
        if isinstance(member, ast.AnnAssign) and isinstance(member.target, ast.Name):
            yield member.target.id, member.annotation
        elif isinstance(member, ast.FunctionDef) and member.decorator_list:
            yield member.name, member.returns


@cache
def modules() -> dict[str, tuple[ast.Module, ModuleType]]:
    found = {}
    for path, tree in trees().items():
        name = path.relative_to(SOURCE)
        if name.parts[0] in {"pyg", "__main__.py"} or "triton" in name.parts:
            continue  # khop.pyg may ask about PyG's own objects; kernels know neither stores nor samplers
        dotted = ".".join(("khop", *name.with_suffix("").parts)).removesuffix(".__init__")
        try:
            found[str(name)] = (tree, importlib.import_module(dotted))
        except ModuleNotFoundError as error:
            if error.name not in {"triton", "ray"}:  # where there is none, modules that need it are left out
                raise
    return found


@cache
def fields() -> dict[str, bool]:
    """Names of fields and properties that hold a store, a sampler, a source or a loader in some class."""
    found: dict[str, list[bool]] = {}
    for tree, module in modules().values():
        for node in ast.walk(tree):
            for name, annotation in members(node) if isinstance(node, ast.ClassDef) else ():
                found.setdefault(name, []).append(any(map(is_of_a_seam, named(annotation, module))))
    return {name: any(of) for name, of in found.items()}


def test_no_module_asks_for_more_than_a_protocol() -> None:
    asking = {name: Asks(*modules()[name], fields()).found for name in sorted(modules().keys() - DEFINING)}
    assert {name: found for name, found in asking.items() if found} == {}


@pytest.mark.long
@pytest.mark.timeout(900)
def test_no_module_asks_by_the_types_of_mypy() -> None:
    """The test above reads annotations, in a second; this one knows the types of all expressions."""
    classes = {f"{each.__module__}.{each.__name__}" for each in (*SEAMS, *PROTOCOLS)}
    sources = {"khop.loading.local_source.LocalSource", "khop.distributed.placement.LaneSource"}
    allowed = {"khop." + name.removesuffix(".py").replace("/", ".") for name in DEFINING}
    found = asks_of(SOURCE, classes | sources, ROOT / "pyproject.toml")
    assert [
        str(ask) for ask in found if ask.module not in allowed and not ask.module.startswith("khop.pyg")
    ] == []


@pytest.mark.long
@pytest.mark.timeout(900)
def test_types_of_mypy_show_what_annotations_do_not(tmp_path: Path) -> None:
    package = tmp_path / "asking"
    package.mkdir()
    (package / "__init__.py").write_text(ASKING)
    found = asks_of(package, {"asking.Store"}, ROOT / "pyproject.toml")
    expected = [number for number, line in enumerate(ASKING.splitlines(), 1) if line.endswith("# found")]
    assert [ask.line for ask in found] == expected


def test_fields_with_stores_samplers_and_sources_are_known() -> None:
    assert {name for name, is_seam in fields().items() if is_seam} >= {
        "topology", "features", "graph", "sampler", "below", "local",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("def f(g: GraphStore): return isinstance(g, int)", 1),
        ("def f(g: object): return isinstance(g, CscGraph | str)", 1),
        ("def f(g: GraphStore | None): return getattr(g, 'lanes', None)", 1),
        ("def f(x: Owner): return hasattr(x.features, 'lanes')", 1),
        ("def f(x: Owner): return type(x.features).__name__", 1),
        ("def f(x: object): return cast(GraphStore, x)", 1),
        ("def f(x: object):\n match x:\n  case CscGraph(): return 1", 1),
        ("def f(x: object): return isinstance(x, int) or hasattr(x, 'schema')", 0),
        ("def f(g: GraphStore): return g.schema", 0),
    ],
)
def test_questions_are_found(text: str, count: int) -> None:
    module = importlib.import_module("khop.graph.partitions.local_partitions")
    namespace = ModuleType("asking")
    namespace.__dict__.update(vars(module), GraphStore=GraphStore)
    assert len(Asks(ast.parse(text), namespace, fields()).found) == count
