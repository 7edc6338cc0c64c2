"""Values for tests of reports."""

from __future__ import annotations

from khop.config.read import RawRun, checked
from khop.config.values import RunConfig


def config_of(**values: object) -> RunConfig:
    """Return a checked run; nothing of it is opened."""
    return checked(RawRun({"graph": "shop", "threads": 2, "compute_threads": 2, **values}, "a test"))
