"""What every test runs under."""

from __future__ import annotations

import gc
import os
import signal

import pytest
import torch
from hypothesis import HealthCheck, settings

from khop.kernels.linear_choice import CHOICES
from support.missing_packages import (  # noqa: F401  # hooks of pytest
    pytest_make_collect_report,
    pytest_runtest_makereport,
    pytest_terminal_summary,
)
from support.slowest_files import SlowestFiles
from support.started_ranks import ranks  # noqa: F401  # a fixture


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(SlowestFiles())


def pytest_collection_finish() -> None:
    """Leave the collected tests out of garbage collection: it takes a third of the time of small ones."""
    gc.collect()
    gc.freeze()


# The same examples on every run and machine. `make test-long` looks further, at other ones each time.
settings.register_profile(
    "khop",
    max_examples=12,
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("long", settings.get_profile("khop"), max_examples=100, derandomize=False)
settings.load_profile("khop")

# A shell starts what it sends to the background with SIGINT ignored, which children inherit: tests of Ctrl-C
# need it as a terminal gives it.
signal.signal(signal.SIGINT, signal.default_int_handler)

# A layer is computed in one way on every machine; tests of the other ways choose them. The variable is for
# commands that tests start.
CHOICES.fix(None)
os.environ["KHOP_LINEAR"] = "torch"

# Without a GPU, Triton's kernels run in its interpreter, which must be chosen before anything imports triton.
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"
