"""Checks of a run and of its built-in graph, made once instead of by every rank."""

from __future__ import annotations

from khop.api.launch import check_procs, launched_by_others
from khop.cli.bytes_bar import bytes_bar
from khop.cli.commands.shared import RankOptions
from khop.config.read import RawRun
from khop.config.resolve import graph_folder, resolve
from khop.config.values import RunConfig
from khop.user_cache import cache_folder


def check_once(raw: RawRun, config: RunConfig, ranks: RankOptions) -> None:
    """Raise ValueError for an invalid run or number of processes, before processes are started."""
    if ranks.procs is None or ranks.procs == 1 or launched_by_others() is not None:
        return
    check_procs(ranks.procs, config.device, ["oversubscribe"] if ranks.oversubscribe else ())
    with bytes_bar() as notice:
        resolve(config, graph_folder(config, raw, cache_folder(), notice), raw)
