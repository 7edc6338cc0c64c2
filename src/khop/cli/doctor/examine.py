"""The work of `khop doctor`."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from dataclasses import asdict
from itertools import groupby
from pathlib import Path

import typer
from rich.console import Console

from khop.cli.doctor.findings import (
    GPUS,
    Finding,
    FindingState,
    disk,
    gpus,
    installed,
    kernels_of,
    limits,
    requirements,
    versions,
)
from khop.cli.lines import tell
from khop.cli.start import FAILED
from khop.cli.terminal import say, say_next
from khop.user_cache import cache_folder


def examine(as_json: bool, proves: bool) -> None:
    """Print all findings; with `proves`, compare all kernels of the GPUs with the CPU first.

    The exit code is 1 if one of them stops khop.
    """
    found = list(findings(proves))
    stops = [each for each in found if each.state is FindingState.STOPS]
    if as_json:
        print(json.dumps({"works": not stops, "findings": [asdict(each) for each in found]}))
    else:
        _print(found)
    if stops:
        raise typer.Exit(FAILED)


def findings(proves: bool) -> Iterator[Finding]:
    """Examine the installation and this machine; see `examine`."""
    yield from versions(requirements(), installed)
    on_gpus = list(gpus(os.environ))
    # Further modules of khop need torch. Without it there is one problem, and it is named already.
    if all(each.state is not FindingState.STOPS for each in on_gpus):
        yield from _with_torch()
        on_gpus += _kernels(proves)
    yield from on_gpus
    yield from limits()
    yield from disk(cache_folder(), Path.cwd())


def _with_torch() -> Iterator[Finding]:
    from khop.cli.doctor.findings import cores, network
    from khop.cli.doctor.memory import memory
    from khop.distributed.processes.launchers import interfaces

    yield from cores(os.environ)
    yield from memory(os.environ)
    yield from network(interfaces(), socket.gethostname())


def _kernels(proves: bool) -> Iterator[Finding]:
    import torch

    from khop.kernels.choice import why_no_kernels
    from khop.loading.device.static_choice import kept_verdict, why_no_batches
    from khop.loading.device.streams import num_gpus

    for number in range(num_gpus()):
        reason = why_no_kernels(number)
        if reason is None and proves:
            tell(f"comparing the kernels of cuda:{number} with the CPU")
            reason = why_no_batches(torch.device("cuda", number), every=True)
        answers = kept_verdict(number)
        wrong = next((problem for problem in answers.values() if problem), None)
        yield kernels_of(number, reason or wrong, answers)
    if proves and not num_gpus():
        yield Finding(GPUS, "kernels", "there is no card to compare them on", FindingState.NOTE)


def _print(found: list[Finding]) -> None:
    console = Console()
    width = max(len(each.name) for each in found)
    for area, of_area in groupby(found, key=lambda each: each.area):
        say(console, area)
        for each in of_area:
            say(console, f"  {each.state.value:<5}  {each.name:<{width}}  {each.found}")
            if each.remedy:
                say(console, f"  {'':<5}  {'':<{width}}  {each.remedy}")
    wrong = sum(each.state in (FindingState.WRONG, FindingState.STOPS) for each in found)
    notes = sum(each.state is FindingState.NOTE for each in found)
    say(console, "", f"{wrong} wrong, {notes} not available; the line below each one mends it.")
    if any(each.state is FindingState.STOPS for each in found):
        say(console, "khop does not work until the lines marked stops are mended.")
        return
    say_next(console, ("khop", "train", "debian"))
