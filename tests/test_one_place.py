"""A component is declared in one place: few files name it, and options.json follows from its class."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from khop.components import FAMILIES, TASKS
from khop.run.fields import FILE, kind_fields, run_fields
from khop.run.run_type import options_document
from support.syntax_trees import SOURCE, trees

ASIDE = {"__init__.py", "pyg"}
# By the name of the class: its kind, if it is a text of its own. Kinds of tasks are also in proposed runs.
NAMED = {
    target.rpartition(":")[2]: kind if "-" in kind and family is not TASKS else ""
    for family in FAMILIES.values()
    for kind, target in family.builtin.items()
}
MOST = 3  # the registry, the module of the class, and one user


@cache
def _words(file: Path) -> frozenset[str]:
    """The names that a file uses, defines or imports, and its texts of a single word."""
    return frozenset(_words_of(trees()[file]))


def _words_of(tree: ast.Module) -> Iterator[str]:
    naming = (ast.Name, ast.Attribute, ast.ClassDef, ast.ImportFrom, ast.Constant)
    for node in (node for node in ast.walk(tree) if isinstance(node, naming)):
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.ClassDef(name=name):
                yield name
            case ast.ImportFrom(names=names):
                yield from (each.name for each in names)
            case ast.Constant(value=str(text)):
                yield text


def test_few_files_name_a_component() -> None:
    paths = [path for path in trees() if not ASIDE & set(path.relative_to(SOURCE).parts)]
    files = {
        name: [str(path.relative_to(SOURCE)) for path in paths if _words(path) & ({name, named} - {""})]
        for name, named in NAMED.items()
    }
    assert {name: named for name, named in files.items() if len(named) > MOST} == {}


def test_the_file_of_options_is_what_the_classes_declare() -> None:
    wanted = json.loads(json.dumps(options_document()))
    assert json.loads(FILE.read_text()) == wanted, "run scripts/options-file"


def test_every_option_of_a_component_has_a_description() -> None:
    entries = [*run_fields(), *(entry for entry, _ in kind_fields().values())]
    assert [entry.path for entry in entries if not entry.description] == []


def test_an_option_that_kinds_share_shows_every_value_that_one_of_them_allows() -> None:
    inner, kinds = kind_fields()["sampler.rule.inner"]
    assert kinds == ("sum", "symmetric-sum", "relation-mean")
    assert inner.choices == ("uniform", "weighted", "labor", "top-k")  # relation-mean has two of them
