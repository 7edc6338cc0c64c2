"""A trainer takes any loader of the protocol: a plain list of batches is one."""

from __future__ import annotations

import inspect

from khop import Loader
from khop.training.batch_loader import BatchLoader


def test_khops_loader_has_every_method_with_the_same_arguments() -> None:
    for name, of_protocol in vars(BatchLoader).items():
        if inspect.isfunction(of_protocol) and name not in ("__init__", "__subclasshook__"):
            own = inspect.signature(getattr(Loader, name))
            assert list(own.parameters) == list(inspect.signature(of_protocol).parameters)
