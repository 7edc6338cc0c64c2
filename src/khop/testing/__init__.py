"""Contract suites: tests for every implementation of a protocol, such as a custom graph store.

The modules `graph_store`, `graph_rules`, `feature_store`, `rule`, `sampler`, `group_sampler` and
`batch_source` are suites. The tuple `PROMISES` of a module has its tests. A test is a function that takes an
implementation, or a function that makes one. If the implementation fails the test, it raises
`BrokenPromise`. The message states the promise and the difference. With pytest:

    from khop.testing import feature_store

    @pytest.mark.parametrize("promise", feature_store.PROMISES, ids=lambda promise: promise.__name__)
    def test_my_store(promise):
        promise(MyStore)

The suites need hypothesis. All other modules are internal: their names may change in any version.

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
