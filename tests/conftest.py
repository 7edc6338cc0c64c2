"""What every test runs under.

Modules that are imported here need torch, Triton, NumPy and pytest alone, so that `pytest -m gpu` collects
tests on a machine that has nothing else.
"""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Generator
from contextlib import ExitStack, nullcontext
from pathlib import Path
from types import FunctionType
from typing import TYPE_CHECKING

import pytest
import torch

from khop.kernels.linear_choice import CHOICES
from support.covering import redundant
from support.fork_server import forked_starts, real_starts
from support.missing_packages import (  # noqa: F401  # hooks of pytest
    pytest_make_collect_report,
    pytest_runtest_makereport,
    pytest_terminal_summary,
)
from support.parts import LONG_FIXTURES, is_long
from support.short_reports import shorten_reports
from support.slowest_files import SlowestFiles
from support.started_ranks import ranks  # noqa: F401  # a fixture

if TYPE_CHECKING:
    from xdist.workermanage import Producer

    from support.shared_files import SharedFiles

TESTS = Path(__file__).parent
# Without a GPU, `torch.manual_seed` formats the stack for each kind of device: 1 ms, and memory that grows.
SEED = torch.manual_seed if torch.cuda.is_available() else torch.default_generator.manual_seed


def pytest_addoption(parser: pytest.Parser, pluginmanager: pytest.PytestPluginManager) -> None:
    if not pluginmanager.hasplugin("timeout"):
        parser.addini("timeout", "Seconds of a test, which pytest-timeout limits.")


def pytest_configure(config: pytest.Config) -> None:
    gc.disable()  # until all tests are collected: it takes a fifth of that time, and finds nothing
    config.pluginmanager.register(SlowestFiles())
    shorten_reports(config)
    starts = ExitStack()
    starts.enter_context(forked_starts())
    config.add_cleanup(starts.close)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not import files without a wanted test: long ones; for `-m gpu`, those that need more packages."""
    if config.option.markexpr == "not long":
        named = {Path(argument.partition("::")[0]).name for argument in config.args}
        path = collection_path.relative_to(TESTS) if collection_path.is_relative_to(TESTS) else Path()
        return True if named.isdisjoint(path.parts) and is_long(path) else None
    if config.option.markexpr != "gpu":
        return None
    files = collection_path.rglob("test_*.py") if collection_path.is_dir() else [collection_path]
    return None if any("mark.gpu" in file.read_text() for file in files) else True


def pytest_pycollect_makeitem(collector: pytest.Collector, obj: object) -> list[pytest.Item] | None:
    """Make no cases of a long test that `-m` deselects, unless it is named."""
    if not isinstance(obj, FunctionType) or collector.config.option.markexpr != "not long":
        return None
    if any("::" in argument for argument in collector.config.args):
        return None
    return [] if any(mark.name == "long" for mark in getattr(obj, "pytestmark", ())) else None


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> SharedFiles | None:
    """With `--dist loadfile`, let one process run the files that share something."""
    from support.shared_files import SharedFiles

    return SharedFiles(config, log) if config.getvalue("dist") == "loadfile" else None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    SEED(0)  # the same weights in any order of the tests
    with real_starts() if item.get_closest_marker("real_start") else nullcontext():
        return (yield)


@pytest.hookimpl(tryfirst=True)  # before `-m` deselects
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    named = {Path(argument.partition("::")[0]).name for argument in config.args}
    if config.option.markexpr != "not long":
        named = set()  # else a file that is named runs whole
    not_named = {path for path in {item.path for item in items} if path.name not in named}
    long_files = {path for path in not_named if is_long(path.relative_to(TESTS))}
    for item in items:
        has_long_fixture = not LONG_FIXTURES.isdisjoint(getattr(item, "fixturenames", ()))
        if item.path in long_files or (has_long_fixture and item.path in not_named):
            item.add_marker(pytest.mark.long)
    for item in redundant(items):
        item.add_marker(pytest.mark.long)


def pytest_collection_finish() -> None:
    """Leave the collected tests out of garbage collection: it takes a third of the time of small ones."""
    gc.enable()
    gc.collect()
    gc.freeze()


try:
    from hypothesis import HealthCheck, settings
except ImportError:  # tests of GPUs do without it
    pass
else:
    # The same few examples on every run and machine. `make test-all` looks further, at other ones each time.
    settings.register_profile(
        "khop",
        max_examples=3,
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
    )
    settings.register_profile("all", settings.get_profile("khop"), max_examples=100, derandomize=False)
    settings.load_profile("khop")

# A shell starts what it sends to the background with SIGINT ignored, which children inherit: tests of Ctrl-C
# need it as a terminal gives it.
signal.signal(signal.SIGINT, signal.default_int_handler)

# A layer is computed in one way on every machine, also by commands (support/__init__.py); tests of the other
# ways choose them.
CHOICES.fix(None)
torch.set_num_threads(1)  # pytest processes share the cores; tests of several threads choose how many

# Without a GPU, Triton's kernels run in its interpreter, which must be chosen before anything imports triton.
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"
