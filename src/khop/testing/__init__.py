"""Contract suites: tests that every implementation of a protocol passes, khop's and custom ones.

`khop.testing.graph_store`, `graph_rules`, `feature_store`, `rule`, `sampler`, `group_sampler` (samplers of
groups) and `batch_source` each have `PROMISES`, a tuple of functions. Each function takes a way to make the
implementation. It raises `BrokenPromise`, which names the promise and the difference. A test calls them one
by one:

    from khop.testing import feature_store

    @pytest.mark.parametrize("promise", feature_store.PROMISES, ids=lambda promise: promise.__name__)
    def test_my_store(promise):
        promise(MyStore)

The suites need hypothesis, and are imported on first use: `import khop` does not need it. All other modules
of this package are internal: their names may change in any version.
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

SUITES = ("graph_store", "graph_rules", "feature_store", "rule", "sampler", "group_sampler", "batch_source")


def __getattr__(name: str) -> ModuleType:
    """Import the suite of this name; afterwards it is an ordinary attribute."""
    if name not in SUITES:
        raise AttributeError(f"module 'khop.testing' has no attribute {name!r}; there are {list(SUITES)}")
    return import_module(f"khop.testing.{name}")
