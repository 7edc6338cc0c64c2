"""khop's tasks have every member of the protocol of a run's task."""

from __future__ import annotations

import inspect

import pytest

from khop.config.link_run_task import LinkTask
from khop.config.node_task import NodeTask
from khop.config.run_task import RunTask

MEMBERS = [name for name in vars(RunTask) if not name.startswith("_")]


@pytest.mark.parametrize("task", [NodeTask, LinkTask])
def test_members_have_the_arguments_of_the_protocol(task: type) -> None:
    fields = task.__dataclass_fields__  # type: ignore[attr-defined]
    for name in MEMBERS:
        of_protocol = inspect.getattr_static(RunTask, name)
        if inspect.isfunction(of_protocol):
            own = inspect.signature(getattr(task, name))
            assert list(own.parameters) == list(inspect.signature(of_protocol).parameters)
        else:
            assert name in fields or isinstance(inspect.getattr_static(task, name), property)
