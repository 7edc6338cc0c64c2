"""Checks of a run and of its built-in graph, made once instead of by every rank."""

from __future__ import annotations

from khop.api.launch import check_procs, launched_by_others
from khop.cli.bytes_bar import bytes_bar
from khop.config.read import RawRun
from khop.config.resolve import graph_folder, resolve
from khop.config.values import RunConfig
from khop.user_cache import cache_folder


def check_once(raw: RawRun, config: RunConfig, procs: int | None, *, oversubscribe: bool) -> None:
    """Raise ValueError for an invalid run or number of processes, before processes are started."""
    if procs is None or procs == 1 or launched_by_others() is not None:
        return
    check_procs(procs, config.device, oversubscribe=oversubscribe)
    with bytes_bar() as notice:
        resolve(config, graph_folder(config, raw, cache_folder(), notice), raw)
