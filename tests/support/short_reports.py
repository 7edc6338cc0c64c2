"""Fewer messages between the processes of pytest-xdist: of small tests they are a third of the time."""

from __future__ import annotations

from typing import Any

import pytest

SHOWN_S = 0.005  # by --durations


def shorten_reports(config: pytest.Config) -> None:
    """Let a process of pytest-xdist report neither starts of tests, nor short set-ups or output that passed.

    With -v, -rP and --junitxml, which show them, it reports all.
    """
    if config.option.verbose > 0 or config.option.xmlpath or {"A", "P"} & {*config.option.reportchars}:
        return
    for plugin in config.pluginmanager.get_plugins():
        if type(plugin).__name__ == "WorkerInteractor":
            _shorten(plugin)


def _shorten(plugin: Any) -> None:  # noqa: ANN401
    send = plugin.sendevent

    def send_some(name: str, **event: Any) -> None:  # noqa: ANN401
        if name in ("logstart", "logfinish") or (name == "testreport" and _is_dull(event["data"])):
            return
        if name == "testreport" and event["data"]["outcome"] == "passed":
            event["data"] |= {"keywords": {}, "sections": []}
        send(name, **event)

    plugin.sendevent = send_some


def _is_dull(report: dict[str, Any]) -> bool:
    return report["when"] != "call" and report["outcome"] == "passed" and report["duration"] < SHOWN_S
