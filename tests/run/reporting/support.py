"""Values for tests of reports."""

from __future__ import annotations

from khop.run.check import checked
from khop.run.read import RawRun
from khop.run.values import RunConfig


def config_of(**values: object) -> RunConfig:
    """Return a checked run; nothing of it is opened."""
    return checked(RawRun({"graph": "shop", "threads": 2, "compute_threads": 2, **values}, "a test"))
