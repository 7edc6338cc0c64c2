"""A run on several processes is checked before any of them is started."""

from __future__ import annotations

from pathlib import Path

import pytest

from khop.cli.commands.shared import RankOptions
from khop.cli.rank_runs import check_once
from khop.cli.ranks import with_device
from khop.run.check import checked
from khop.run.read import RawRun


def test_a_wrong_run_and_too_many_processes_are_named_once(learnable: Path) -> None:
    raw = RawRun({"graph": str(learnable), "task": {"label": "color"}}, "run.toml")
    config = checked(raw)
    check_once(raw, config, RankOptions(None, False))
    check_once(raw, config, RankOptions(1, False))  # one process checks by itself
    with pytest.raises(ValueError, match=r"task\.label is 'color'"):
        check_once(raw, config, RankOptions(2, False))
    with pytest.raises(ValueError, match="procs 100000"):
        check_once(raw, config, RankOptions(100_000, False))
    right = RawRun({"graph": str(learnable)}, "run.toml")
    check_once(right, checked(right), RankOptions(2, False))


def test_processes_that_do_not_fit_in_memory_are_refused(
    learnable: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw = RawRun({"graph": str(learnable)}, "run.toml")
    monkeypatch.setattr("khop.cli.rank_runs.free_memory_bytes", lambda: 1000)
    with pytest.raises(ValueError, match=r"--procs 2: the processes need .* for Python and torch alone"):
        check_once(raw, checked(raw), RankOptions(2, False))


@pytest.mark.parametrize(("gpus", "procs", "given", "device"), [
    (1, 2, {}, "cpu"), (2, 2, {}, "cuda"), (1, 1, {}, "cuda"), (1, None, {}, "cuda"),
    (1, 2, {"device": "cuda"}, "cuda"),
])  # fmt: skip
def test_more_processes_than_gpus_compute_on_the_cpu_if_no_device_is_named(
    gpus: int, procs: int | None, given: dict[str, str], device: str,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setattr("torch.cuda.device_count", lambda: gpus)
    raw = RawRun({"graph": "debian", **given}, "run.toml")
    config = checked(RawRun({"graph": "debian", "device": "cuda"}, "run.toml"))
    assert with_device(raw, config, RankOptions(procs, False)).device == device
    said = capsys.readouterr().err
    assert said == (
        "khop: device is cpu: this machine has 1 GPU for 2 processes\n" if device == "cpu" else ""
    )
