"""The parts of `make test-all`: tests that `make test` leaves out, and the files whose change needs them.

`make test` runs all tests that are not `long`. A test is long by `@pytest.mark.long`, or because this table
lists its file or a fixture of it. A part of `make test-all` is the long tests of some files, or commands.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import PurePath

# Files and folders of tests/ that build, install, or start more processes than they test anything else.
LONG_FILES = (
    "cli/test_kills.py", "cli/test_stores.py", "damage", "memory", "network",
    "processes/test_rank_process.py", "test_examples.py", "test_forks.py", "test_fresh_clone.py",
    "test_lightning_loops.py",
    "test_site_browser.py", "test_taobao.py", "test_tutorials.py", "test_walks.py",
    "kernels/triton/test_compilation.py", "kernels/triton/test_versions.py", "pyg/test_lightning.py",
    "pyg/test_versions.py",
)  # fmt: skip
LONG_FIXTURES = frozenset({"site", "wheel"})  # built by these tests
PROGRAMS = {  # by package of Debian: a program of it, or a pattern of its path
    "bindfs": "bindfs", "chromium": "chromium", "chromium-driver": "chromedriver", "iproute2": "tc",
    "nftables": "nft", "postgresql": "/usr/lib/postgresql/*/bin/initdb", "valgrind": "valgrind",
}  # fmt: skip
BROWSER = ("chromium", "chromium-driver")


@dataclass(frozen=True)
class Part:
    """Tests of `make test-all`, and the paths whose change needs them."""

    sources: tuple[str, ...]
    tests: tuple[str, ...] = ()  # folders and files of tests/, of which the long tests run
    commands: tuple[str, ...] = ()
    group: str = ""  # of packages, in pyproject.toml, that only these tests need
    programs: tuple[str, ...] = ()  # packages of Debian, of PROGRAMS
    is_for_changes: bool = True  # False: too long, root or downloads; runs with all, or by name

    def ignored(self) -> list[str]:
        """Return tests in the folders of this part that are a part of their own."""
        listed = {name for part in PARTS.values() if part is not self for name in part.tests}
        return sorted(name for name in listed for own in self.tests if name.startswith(f"{own}/"))


RUNTIME = (
    "batch.py",
    "components.py",
    "draw.py",
    "errors.py",
    "schema.py",
    "arguments.py",
    "process_tuning.py",
)
OF_ALL = tuple(f"src/khop/{name}" for name in RUNTIME)
PARTS = {
    "sanitizers": Part(
        ("csrc", "tests/csrc", "CMakeLists.txt"),
        commands=("SANITIZE=thread scripts/test-native",),  # `make test` has the others
    ),
    "levels": Part(("csrc",), commands=("LEVELS=all scripts/test-native",), is_for_changes=False),
    "machines": Part(("csrc",), commands=(
        "scripts/test-valgrind", "scripts/test-aarch64", "scripts/count-instructions",
        "scripts/compile-kernels sm_80 sm_90 gfx942",
    ), programs=("valgrind",), is_for_changes=False),
    "packages": Part(("pyproject.toml",), commands=(
        "scripts/test-without pyarrow,duckdb,ray tests/api tests/cli tests/run tests/data tests/inference "
        "tests/servers tests/test_suite.py",
    ), is_for_changes=False),
    "kernels": Part(
        ("csrc", "src/khop/kernels", "scripts/compile-kernels", "scripts/gpu-contact"),
        ("kernels", "gpu", "reference", "test_gpu_contact.py", "test_suite.py"),
    ),
    "triton": Part(
        ("src/khop/kernels/triton",),
        ("kernels/triton/test_slow_disturbed.py", "kernels/triton/test_versions.py"),
        is_for_changes=False,
    ),
    "graph": Part(("src/khop/graph", *OF_ALL), ("graph", "contracts", "testing")),
    "sampling": Part(
        ("src/khop/sampling", "src/khop/kernels", *OF_ALL), ("sampling", "extension", "contracts"),
    ),
    "loading": Part(("src/khop/loading", *OF_ALL), ("loading", "test_process_tuning.py", "test_forks.py")),
    "training": Part(("src/khop/models", "src/khop/training", "src/khop/inference"),
                     ("models", "training", "inference", "extension", "test_convolutions.py")),
    "data": Part(("src/khop/data",), ("data",), programs=("postgresql",)),
    "processes": Part(("src/khop/distributed", "src/khop/loading", "src/khop/training", "src/khop/inference"),
                      ("distributed", "processes", "test_walks.py")),
    "servers": Part(("src/khop/servers", "src/khop/api"), ("servers", "processes")),
    "run": Part(
        ("src/khop/run", "src/khop/cli", "src/khop/api"),
        ("run", "cli", "api", "test_docstrings.py", "test_docs.py"),
        programs=BROWSER,
    ),
    "stores": Part(
        ("src/khop/graph/remote.py", "src/khop/cli", "src/khop/data", "src/khop/run",
         "src/khop/training/run_output.py"),
        ("cli/test_store_mirrors.py", "cli/test_stores.py"), group="stores",
    ),
    "input": Part(("src/khop/data", "src/khop/cli"), ("cli/test_malformed_input.py",)),
    "pyg": Part(("src/khop/pyg",), ("pyg", "test_lightning_loops.py")),
    "site": Part(("docs", "README.md", "scripts/build_docs.py", "scripts/error_index.py"),
                 ("test_site.py", "test_site_browser.py", "test_docs.py"), programs=BROWSER),
    "tutorials": Part(("docs/tutorials", "examples/launch", "src/khop/cli", "src/khop/data"),
                      ("test_tutorials.py",)),
    "examples": Part(("examples", "src/khop/api", "src/khop/pyg"), ("test_examples.py", "test_taobao.py")),
    "wheel": Part(("pyproject.toml", "constraints.txt", "CMakeLists.txt", "csrc", "scripts/make-venv"),
                  ("test_packaging.py", "test_seams.py")),
    "clone": Part(("Makefile",), ("test_fresh_clone.py",), is_for_changes=False),
    "damage": Part(("src/khop/graph", "src/khop/data"), ("damage",), is_for_changes=False),
    "kills": Part(("src/khop/cli",), ("cli/test_kills.py", "cli/test_second_ctrl_c.py"),
                  is_for_changes=False),
    "memory": Part(("src/khop/graph",), ("memory",), programs=("bindfs",), is_for_changes=False),
    "network": Part(("src/khop/distributed", "src/khop/servers"), ("network",),
                    programs=("iproute2", "nftables"), is_for_changes=False),
}  # fmt: skip


def is_long(file: PurePath) -> bool:
    """Return True if the tests of this file of tests/ are long by the table."""
    return not {str(parent) for parent in (file, *file.parents)}.isdisjoint(LONG_FILES)


def needed_by(changed: Iterable[str]) -> list[str]:
    """Return the parts that run for changes of these paths: those of a source or of a test that changed."""

    def is_needed(part: Part) -> bool:
        within = (*part.sources, *(f"tests/{name}" for name in part.tests))
        return any(path == each or path.startswith(f"{each}/") for path in paths for each in within)

    paths = list(changed)
    return [name for name, part in PARTS.items() if part.is_for_changes and is_needed(part)]
