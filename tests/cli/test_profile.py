"""`khop profile`: a table, a sentence, a trace and a picture, of any run, on any number of processes."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from matplotlib.image import imread

from cli.conftest import Ran
from cli.test_processes import ENVIRONMENT, KHOP, process
from khop.cli.train import WARM_UP
from khop.run.bottleneck import Kind
from khop.run.build import Run
from khop.run.fields import field_at
from khop.training.trainer import Trainer
from support.commands import TORCHRUN
from support.gate import WAIT_S, wait_until


def trace_of(folder: str) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = json.loads(Path(folder, "trace.json").read_text())["traceEvents"]
    return events


def test_a_profile_says_where_the_time_goes_and_which_setting_to_change(
    khop_command: Callable[..., Ran], small_run: Path
) -> None:
    done = khop_command("profile", "run.toml", "--steps", "12", "--threads", "1")
    assert done.code == 0, done.stderr
    for word in ("waits for", "transfer", "compute", "sampling", "gather", "seeds/s", "edges/s", "busy"):
        assert word in done.stdout
    assert "an epoch has 6 steps: the profile covers several" in done.stdout
    *_, finding, advice, where, empty, title, command = done.stdout.splitlines()
    assert (empty, title) == ("", "Next:")
    assert command.split()[:2] in (["khop", "profile"], ["khop", "train"])
    assert finding.endswith(".")
    named = [word for word in advice.split() if field_at(word) is not None]
    assert named, advice
    assert where.startswith("Timeline: profiles/toy-1/timeline.png")
    folder = Path("profiles/toy-1")
    assert sorted(path.name for path in folder.iterdir()) == [
        "config.toml",
        "steps.jsonl",
        "timeline.png",
        "trace.json",
    ]
    assert len((folder / "steps.jsonl").read_text().splitlines()) == WARM_UP + 12
    bars = [event for event in trace_of("profiles/toy-1") if event["ph"] == "X"]
    assert {(bar["args"]["epoch"], bar["args"]["step"]) for bar in bars} == {
        divmod(number, 6) for number in range(WARM_UP, WARM_UP + 12)
    }
    assert imread(io.BytesIO((folder / "timeline.png").read_bytes())).shape[1] == 1300


def test_a_profile_makes_no_loader_on_one_rank_alone(
    khop_command: Callable[..., Ran], small_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only rank 0 works after the steps, and a loader may place stores and exchange with other ranks."""
    made: list[str] = []

    def noting(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*arguments: Any) -> Any:  # noqa: ANN401
            found = function(*arguments)
            made.append(name)
            return found

        return noted

    monkeypatch.setattr(Run, "loader", noting("loader", Run.loader))
    monkeypatch.setattr(Trainer, "rehearse", noting("steps", Trainer.rehearse))
    done = khop_command("profile", "run.toml", "--steps", "1")
    assert done.code == 0, done.stderr
    assert made[-1] == "steps"


@pytest.mark.long
def test_a_script_reads_the_last_line(khop_command: Callable[..., Ran], small_run: Path) -> None:
    done = khop_command("profile", "run.toml", "--steps", "3", "--out", "p", "--json")
    (line,) = done.stdout.splitlines()
    outcome = json.loads(line)
    assert (outcome["profile"], outcome["steps"]) == ("p", 3)
    assert outcome["bottleneck"] in list(Kind)
    assert field_at(outcome["setting"]) is not None
    (rank,) = outcome["ranks"]
    assert rank["seeds_per_s"] > 0


@pytest.mark.long
def test_a_run_that_was_trained_can_be_profiled_and_stays_as_it_was(
    khop_command: Callable[..., Ran], trained_run: None
) -> None:
    before = {path: path.read_bytes() for path in Path("a").rglob("*") if path.is_file()}
    done = khop_command("profile", "a", "--steps", "2")
    assert done.code == 0, done.stderr
    assert {path: path.read_bytes() for path in Path("a").rglob("*") if path.is_file()} == before


def test_a_graph_folder_and_a_preset_are_profiled_as_they_are_trained(
    khop_command: Callable[..., Ran], learnable: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = khop_command("profile", str(learnable), "--steps", "1", "--hidden", "4", "--out", "p")
    assert done.code == 0, done.stderr
    assert Path("p/trace.json").is_file()
    Path("debian").mkdir()  # its name is that of a preset, which `khop train debian` trains
    wrong = khop_command("profile", "debian", "--batch-size", "0")
    assert wrong.stderr.startswith("khop: training.batch_size is 0")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            ("nowhere.toml",),
            "khop: nowhere.toml: no such file; give a run.toml, a graph folder, or a preset",
        ),
        (
            (),
            "khop: no run is given: use khop profile debian, khop profile run.toml, or khop profile --graph "
            "FOLDER",
        ),
        (("run.toml", "--steps", "0"), "khop: steps is 0: must be at least 1 (--steps)"),
        (("run.toml", "--procs", "0"), "khop: procs 0: must be a whole number, 1 or more"),
        (("run.toml", "--out", "."), "khop: out is '.': the folder is not empty; name another"),
        (
            ("run.toml", "--batch-size", "0"),
            "khop: training.batch_size is 0: must be a whole number of at least",
        ),
        ((".",), "khop: .: not a run folder, it has no config.toml"),
    ],
)
def test_bad_input_is_one_line(
    khop_command: Callable[..., Ran], small_run: Path, arguments: tuple[str, ...], sentence: str
) -> None:
    done = khop_command("profile", *arguments)
    assert done.code == 2
    assert done.stderr.startswith(sentence)
    assert done.stderr.count("\n") == 1
    assert not Path("profiles").exists()


@pytest.mark.long
def test_processes_wait_for_one_another_and_the_table_says_for_whom(small_run: Path) -> None:
    command = ["-m", "khop", "profile", "run.toml", "--steps", "10", "--out", "p", "--json"]
    done = process(*TORCHRUN, "2", *command)  # --procs 2 is stopped below
    assert done.returncode == 0, done.stderr
    assert "waits on" in done.stderr
    first, second = json.loads(done.stdout)["ranks"]
    assert (first["rank"], second["rank"]) == (0, 1)
    assert first["waited_for"].keys() == {"1"}
    assert second["waited_for"].keys() == {"0"}
    assert first["waited_for"]["1"] + second["waited_for"]["0"] > 0
    events = trace_of("p")
    assert {event["pid"] for event in events} == {0, 1}
    # One clock: nobody leaves an exchange before all have come to it.
    exchanges = [
        {(bar["args"]["epoch"], bar["args"]["step"]): (bar["ts"], bar["ts"] + bar["dur"]) for bar in events
         if bar["ph"] == "X" and bar["pid"] == rank and bar["name"] == "losses"}
        for rank in (0, 1)
    ]  # fmt: skip
    measured = {divmod(number, 6) for number in range(WARM_UP, WARM_UP + 10)}
    assert exchanges[0].keys() == exchanges[1].keys() == measured
    for step in measured:
        begun, ended = zip(*(of_rank[step] for of_rank in exchanges), strict=True)
        assert max(begun) <= min(ended)


@pytest.mark.long
@pytest.mark.parametrize("procs", ["1", "2"])
def test_ctrl_c_prints_what_there_is_and_leaves_no_process(small_run: Path, procs: str) -> None:
    command = [*KHOP, "profile", "run.toml", "--steps", "1000000", "--procs", procs, "--out", "p"]
    pipe = subprocess.PIPE
    running = subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=ENVIRONMENT)
    log = Path("p/steps.jsonl")
    wait_until(lambda: log.exists() and bool(log.read_text()))
    running.send_signal(signal.SIGINT)
    out, errors = running.communicate(timeout=WAIT_S)
    assert running.returncode == 130
    assert errors == ""
    assert "stopped after " in out
    assert "Timeline: p/timeline.png" in out
    assert Path("p/trace.json").exists()
    wait_until(lambda: _at_work_here() == [])


def _at_work_here() -> list[str]:
    """Other processes whose working directory is this test's."""
    found: list[str] = []
    for process_folder in Path("/proc").glob("[0-9]*"):
        try:
            if (process_folder / "cwd").resolve() == Path.cwd() and process_folder.name != str(os.getpid()):
                found.append((process_folder / "cmdline").read_text())
        except OSError:  # it has ended
            continue
    return found
