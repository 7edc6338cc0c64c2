"""Contract suites: tests that every implementation of a protocol must pass, including yours.

The modules `graph_store`, `graph_rules`, `feature_store`, `rule`, `sampler`, `group_sampler` and
`batch_source` each have `PROMISES`, a tuple of test functions. A function takes the implementation, or a
function that makes it, and raises `BrokenPromise` with the promise and the difference. With pytest:

    from khop.testing import feature_store

    @pytest.mark.parametrize("promise", feature_store.PROMISES, ids=lambda promise: promise.__name__)
    def test_my_store(promise):
        promise(MyStore)

The suites need hypothesis and are imported on first use. All other modules are internal: their names may
change in any version.

Example:
    >>> from khop.testing import rule
    >>> rule.it_is_a_value(khop.Uniform())
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
