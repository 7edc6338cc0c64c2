"""Rules of the code that a reader of one file cannot see, checked on the syntax trees of all files."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pytest

import khop
from support.syntax_trees import SOURCE, trees

# A part imports from the lines above its own.
# A change to this table is a decision: docs/decisions.md says why.
LAYERS = (
    {"_core", "arguments", "components", "errors", "process_tuning", "user_cache"},
    {"schema"},
    {"draw", "batch"},
    {"kernels"},
    {"graph"},
    {"sampling", "data"},
    {"loading"},
    {"distributed"},
    {"servers", "models"},
    {"training"},
    {"inference"},
    {"api"},
    {"pyg", "run", "testing"},
    {"cli"},
    {"__main__", "__init__"},
)
MAY_IMPORT = {
    **{part: set() for part in LAYERS[0]},
    "schema": {"arguments"},
    "draw": {"arguments", "schema"},
    "batch": {"schema"},
    "kernels": {"_core", "errors", "user_cache", "draw"},
    "graph": {"arguments", "errors", "user_cache", "schema", "draw", "kernels"},
    "sampling": {"arguments", "components", "errors", "schema", "draw", "batch", "kernels", "graph"},
    "data": {"arguments", "components", "errors", "user_cache", "schema", "draw", "kernels", "graph"},
    "loading": {
        "arguments", "errors", "process_tuning", "schema", "draw", "batch", "kernels", "graph", "sampling",
    },
    "distributed": {"arguments", "errors", "schema", "draw", "kernels", "graph", "sampling", "loading"},
    "servers": {
        "arguments", "components", "errors", "schema", "draw", "batch", "kernels", "graph", "sampling",
        "loading", "distributed",
    },
    "models": {
        "arguments", "components", "schema", "draw", "batch", "kernels", "graph", "sampling", "distributed",
    },
    "training": {
        "arguments", "components", "errors", "schema", "draw", "batch", "kernels", "graph", "sampling",
        "loading", "distributed", "models",
    },
    "inference": {
        "arguments", "errors", "schema", "draw", "batch", "kernels", "graph", "sampling", "loading",
        "distributed", "servers", "models", "training",
    },
    "api": {
        "arguments", "errors", "process_tuning", "schema", "draw", "batch", "kernels", "graph", "sampling",
        "data", "loading", "distributed", "servers", "models", "training", "inference",
    },
    "pyg": {
        "arguments", "process_tuning", "schema", "draw", "batch", "kernels", "graph", "sampling", "data",
        "loading", "distributed", "api",
    },
    "run": {
        "arguments", "components", "errors", "process_tuning", "user_cache", "schema", "draw", "batch",
        "kernels", "graph", "sampling", "data", "loading", "distributed", "servers", "models", "training",
        "inference", "api",
    },
    "testing": {
        "errors", "schema", "draw", "batch", "kernels", "graph", "sampling", "loading", "distributed",
        "api",
    },
    "cli": {
        "_core", "components", "errors", "process_tuning", "user_cache", "schema", "kernels", "graph",
        "sampling", "data", "loading", "distributed", "servers", "training", "inference", "api", "run",
    },
    "__main__": {"cli"},
    "__init__": {
        "errors", "schema", "draw", "batch", "kernels", "graph", "sampling", "data", "training",
        "inference", "api", "pyg", "run",
    },
}  # fmt: skip

# Packages that are slow to import or not always there, and the one place for each.
CONFINED = {
    "adbc_driver_postgresql": {"data"},
    "adbc_driver_sqlite": {"data"},
    "duckdb": {"data"},
    "hypothesis": {"testing"},
    "jinja2": {"run"},
    "matplotlib": {"run"},
    "pyarrow": {"data", "graph", "inference", "servers"},
    "pydantic": {"run", "data"},
    "ray": {"cli"},
    "rich": {"cli"},
    "tomli_w": {"run", "cli"},
    "tomllib": {"arguments", "run", "cli", "data", "servers"},  # servers: token files
    "torch_geometric": {"pyg"},
    "triton": {"kernels"},
    "typer": {"cli"},
    "yaml": {"data"},
}
GLOBAL_GENERATOR = {
    "bernoulli", "fork_rng", "get_rng_state", "initial_seed", "manual_seed", "multinomial", "normal", "rand",
    "rand_like", "randint", "randint_like", "randn", "randn_like", "randperm", "seed", "set_rng_state",
}  # fmt: skip
SENDS_WORK = {"launch.py", "spawning.py"}  # to processes that khop.launch starts
PICKLES = {"cloudpickle", "dill", "joblib", "marshal", "pickle", "shelve"}


@dataclass(frozen=True)
class Module:
    """One file of src/khop."""

    path: Path

    @cached_property
    def tree(self) -> ast.Module:
        """Parsed when a test needs it: every worker imports this module."""
        return trees()[self.path]

    @cached_property
    def nodes(self) -> Sequence[ast.AST]:
        """All of them."""
        return tuple(ast.walk(self.tree))

    @property
    def part(self) -> str:
        """The folder or file directly under khop: the row of the table."""
        return self.path.relative_to(SOURCE).parts[0].removesuffix(".py")

    @property
    def name(self) -> str:
        """The dotted name that others import."""
        return ".".join(self.path.relative_to(SOURCE.parent).with_suffix("").parts).removesuffix(".__init__")

    @cached_property
    def imported(self) -> Sequence[tuple[int, str]]:
        """Line and full dotted name of everything imported, by text too; `from a import b` is `a.b`."""
        imports = (ast.Import, ast.ImportFrom, ast.Call)
        nodes = (node for node in self.nodes if isinstance(node, imports))
        return tuple(found for node in nodes for found in _imported_by(node))

    def needed(self) -> Iterator[tuple[int, str]]:
        """The same without imports for types alone, and without those of a command that is called."""
        aside = [
            range(statement.lineno, (statement.end_lineno or 0) + 1)
            for statement in self.tree.body
            if (isinstance(statement, ast.If) and ast.unparse(statement.test) == "TYPE_CHECKING")
            or (isinstance(statement, ast.FunctionDef) and self.part == "cli")
        ]
        return ((line, name) for line, name in self.imported if not any(line in lines for lines in aside))

    @cached_property
    def dotted(self) -> Sequence[tuple[int, str]]:
        """Line and text of every dotted name used, such as `torch.manual_seed`."""
        return tuple((node.lineno, _dotted(node)) for node in self.nodes if isinstance(node, ast.Attribute))

    def at(self, line: int) -> str:
        return f"{self.path.relative_to(SOURCE.parent)}:{line}"


def _dotted(node: ast.expr) -> str:
    """Return `a.b` as it is written; `?` stands for what is no name."""
    match node:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=value, attr=name):
            return f"{_dotted(value)}.{name}"
    return "?"


def _imported_by(node: ast.AST) -> Iterator[tuple[int, str]]:
    if isinstance(node, ast.Import):
        yield from ((node.lineno, alias.name) for alias in node.names)
    if isinstance(node, ast.ImportFrom):
        yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)
    if isinstance(node, ast.Call) and _dotted(node.func).endswith("import_module"):
        yield from ((node.lineno, each.value) for each in node.args[:1] if isinstance(each, ast.Constant))


MODULES = [Module(path) for path in sorted(SOURCE.rglob("*.py"))]


def test_imports_follow_the_table() -> None:
    wrong = [
        f"{module.at(line)}: {module.part} may not import {name}"
        for module in MODULES
        for line, name in module.imported
        if name.startswith("khop.")
        and name.split(".")[1] not in MAY_IMPORT.get(module.part, set()) | {module.part}
    ]
    assert wrong == []


def test_every_part_has_a_row_in_the_table_and_a_layer() -> None:
    assert {module.part for module in MODULES} | LAYERS[0] == set(MAY_IMPORT)
    assert sorted(part for layer in LAYERS for part in layer) == sorted(MAY_IMPORT)


def test_the_table_allows_nothing_that_no_module_needs() -> None:
    used = {
        (module.part, name.split(".")[1])
        for module in MODULES
        for _, name in module.imported
        if name.startswith("khop.")
    }
    assert [(part, of) for part, row in MAY_IMPORT.items() for of in row if (part, of) not in used] == []


def test_the_table_points_down() -> None:
    height = {part: number for number, layer in enumerate(LAYERS) for part in layer}
    up = [(part, of) for part, row in MAY_IMPORT.items() for of in row if height[of] >= height[part]]
    assert up == []


def test_no_module_imports_itself_through_others() -> None:
    """Types alone may refer to each other."""
    known = {module.name for module in MODULES}
    imports = {
        module.name: {
            name if name in known else name.rpartition(".")[0]
            for _, name in module.needed()
            if name.startswith("khop.")
        }
        & known
        for module in MODULES
        if module.part != "__init__"  # the front imports a public name when it is asked for
    }
    while free := [name for name, others in imports.items() if not others & set(imports)]:
        for name in free:
            del imports[name]
    assert imports == {}


def test_imports_name_the_defining_module() -> None:
    """Neither relative imports nor the public front: who reads an import sees the file."""
    wrong = [
        module.at(node.lineno)
        for module in MODULES
        for node in module.nodes
        if isinstance(node, ast.ImportFrom) and (node.level > 0 or node.module == "khop")
    ]
    assert wrong == []


def test_imports_of_khop_stand_at_the_top() -> None:
    """But in the command, which imports the modules that load torch when it needs them, and of Triton."""
    late = [
        (module, node)
        for module in MODULES
        if module.part != "cli"
        for node in module.nodes
        if isinstance(node, ast.ImportFrom)
        and node.col_offset > 0
        and (node.module or "").startswith("khop")
        and not (node.module or "").startswith("khop.kernels.triton.")
    ]
    wrong = [
        f"{module.at(node.lineno)}: {function.name}"
        for module, node in late
        for function in module.nodes
        if isinstance(function, ast.FunctionDef) and node in ast.walk(function)
    ]
    assert wrong == []


def test_a_heavy_package_is_imported_by_one_part() -> None:
    wrong = [
        module.at(line)
        for module in MODULES
        for line, name in module.imported
        if module.part not in CONFINED.get(name.split(".")[0], {module.part})
    ]
    assert wrong == []


def test_only_the_command_the_launcher_the_tuning_and_the_users_cache_read_the_environment() -> None:
    reads = {"os.environ", "os.getenv", "os.putenv", "os.environb"}
    wrong = [
        f"{module.at(line)}: {name}"
        for module in MODULES
        if module.part not in {"cli", "__main__", "user_cache"}
        and module.name not in {"khop.api.launch", "khop.process_tuning"}
        for line, name in [*module.dotted, *module.imported]
        if name in reads
    ]
    assert wrong == []


def test_only_training_touches_torchs_global_generator() -> None:
    wrong = [
        f"{module.at(node.lineno)}: {ast.unparse(node.func)}"
        for module in MODULES
        if module.path.relative_to(SOURCE) not in {Path("training/steps.py"), Path("training/trainer.py")}
        for node in module.nodes
        if isinstance(node, ast.Call)
        and _is_global_draw(_dotted(node.func))
        and not any(keyword.arg == "generator" for keyword in node.keywords)
    ]
    assert wrong == []


def _is_global_draw(function: str) -> bool:
    package, _, rest = function.partition(".")
    return package == "torch" and rest.removeprefix("random.").removeprefix("cuda.") in GLOBAL_GENERATOR


def test_no_other_generator_is_used() -> None:
    wrong = [
        f"{module.at(line)}: {name}"
        for module in MODULES
        for line, name in [*module.imported, *module.dotted]
        if name.startswith(("numpy.random", "np.random")) or name.split(".")[0] == "random"
    ]
    assert wrong == []


def test_only_rules_ask_which_rule_it_is() -> None:
    """All others read what a rule states: its needs, its fields, its most edges, its request."""
    rules = {name for name, module in khop._PUBLIC.items() if module.startswith("khop.sampling.rules.")}
    asked = {"isinstance", "issubclass", "type"}
    wrong = [
        f"{module.at(node.lineno)}: {ast.unparse(node)}"
        for module in MODULES
        if module.part != "testing"
        and not module.name.startswith(("khop.sampling.rules.", "khop.graph.rule"))
        for node in module.nodes
        if (isinstance(node, ast.Call) and _dotted(node.func) in asked)
        or isinstance(node, ast.MatchClass | ast.MatchValue)
        if rules & {name.id for name in ast.walk(node) if isinstance(name, ast.Name)}
    ]
    assert wrong == []


def test_two_modules_import_pyarrow_flight() -> None:
    """The client and the server: all else of servers works and is tested without it."""
    found = {
        module.name
        for module in MODULES
        for _, name in module.imported
        if name == "pyarrow.flight" or name.startswith("pyarrow.flight.")
    }
    assert found == {"khop.servers.flight_client", "khop.servers.flight_server"}


READS_TENSOR_FILES = "khop.data.formats.tensor_file"  # by torch's reader, which executes nothing


def test_nothing_is_pickled_or_unpickled() -> None:
    """But the arguments of `khop.launch`, on their way to its processes, and rules in contract suites."""
    allowed = {
        (READS_TENSOR_FILES, "torch.load"),
        (READS_TENSOR_FILES, "pickle.UnpicklingError"),
        ("khop.distributed.processes.spawning", "pickle.PicklingError"),
    }
    wrong = [
        f"{module.at(line)}: {name}"
        for module in MODULES
        if module.part != "testing"
        for line, name in [*module.imported, *module.dotted]
        if (module.name, name) not in allowed
        if name.split(".")[0] in PICKLES
        or name in {"torch.load", "torch.save", "torch.package"}
        or (name.startswith("multiprocessing.reduction") and module.path.name not in SENDS_WORK)
    ]
    wrong += [
        f"{module.at(node.value.lineno)}: allow_pickle"
        for module in MODULES
        for node in module.nodes
        if isinstance(node, ast.keyword) and node.arg == "allow_pickle" and ast.unparse(node.value) != "False"
    ]
    assert wrong == []


def test_files_of_tensors_are_read_without_their_code() -> None:
    (module,) = (module for module in MODULES if module.name == READS_TENSOR_FILES)
    calls = [
        node for node in module.nodes if isinstance(node, ast.Call) and ast.unparse(node.func) == "torch.load"
    ]
    assert [ast.unparse(keyword) for call in calls for keyword in call.keywords] == [
        "map_location='cpu'",
        "weights_only=True",
    ]


def test_no_collective_takes_objects() -> None:
    wrong = [
        f"{module.at(line)}: {name}"
        for module in MODULES
        for line, name in [*module.dotted, *module.imported]
        if name.endswith(("_object", "_object_list"))
    ]
    assert wrong == []


def test_nothing_is_forked() -> None:
    wrong = [
        f"{module.at(line)}: {name}"
        for module in MODULES
        for line, name in [*module.dotted, *module.imported]
        if name in {"os.fork", "os.forkpty"}
    ]
    wrong += [
        f"{module.at(node.lineno)}: {node.value}"
        for module in MODULES
        for node in module.nodes
        if isinstance(node, ast.Constant) and node.value in {"fork", "forkserver"}
    ]
    assert wrong == []


def test_public_names_stand_once_for_python_and_once_for_editors() -> None:
    """The lazy table and the imports that mypy reads are the same list."""
    (front,) = (module for module in MODULES if module.part == "__init__")
    typed = {
        alias.asname: node.module
        for node in front.nodes
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("khop")
        for alias in node.names
        if alias.asname is not None
    }
    assert typed == khop._PUBLIC


def test_public_names_are_there() -> None:
    assert set(khop.__all__) <= set(dir(khop))
    assert [name for name in khop.__all__ if getattr(khop, name) is None] == []


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Lodaer'"):
        khop.Lodaer  # noqa: B018
