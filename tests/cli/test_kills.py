"""Kills at every kind of state of import, append, compact, delete, train and infer: old state, or new state.

A kill comes from what the process does, never from a clock: at a change of the file system, or, on two ranks,
at a point of the work at which both stand.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from cli.test_predict import LATER, RUN
from khop import import_tables, open_folder
from khop.graph.verify import verify_folder
from support.commands import ENVIRONMENT, of_session, records
from support.gate import WAIT_S, Gate, wait_until
from support.later_shops import later_tables, shop_spec, shop_tables

KILLS = 20
SPEC = """
[nodes.user]
files = ["users0.csv"]
id = "user_id"
columns = { age = "number" }
[nodes.item]
files = ["items0.parquet"]
id = "item_id"
columns = { price = "number" }
[edges."user buys item"]
files = ["events0.parquet"]
source = "user_id"
destination = "item_id"
reverse = "bought-by"
"""


class Writer:
    """The process that runs commands in forks of its own."""

    whole: dict[tuple[str, ...], tuple[int, str]]  # events and fingerprint of commands that ran to their end

    def __init__(self, folder: Path) -> None:
        self.whole = {}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "support.killed_writer", str(folder)],
            cwd=folder, env=ENVIRONMENT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def run(self, *words: str, last: int = 0) -> tuple[int, int]:
        """Run a command; return its exit code and the number of its events. It is killed at number `last`."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([words, last]) + "\n")
        self._process.stdin.flush()
        code, events = json.loads(self._process.stdout.readline())
        return code, events

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(timeout=WAIT_S)
        self._process.stdout.close()


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an imported graph, its tables, those of the next day, and a run."""
    home = tmp_path_factory.mktemp("kills")
    tables = shop_tables()
    import_tables(shop_spec(tables), home / "shop")
    for name, end in (("", later_tables()), ("0", tables)):
        pyarrow.csv.write_csv(end["user"], home / f"users{name}.csv")
        pq.write_table(end["item"], home / f"items{name}.parquet")
        pq.write_table(end["event"], home / f"events{name}.parquet")
    (home / "day.toml").write_text(LATER)
    (home / "shop.toml").write_text(SPEC)
    (home / "run.toml").write_text(RUN)
    return home


@pytest.fixture(scope="module")
def writer(home: Path) -> Iterator[Writer]:
    writer = Writer(home)
    yield writer
    writer.close()


def killed(writer: Writer, words: Sequence[str], last: int, restore: Callable[[], object]) -> None:
    """Run a command and kill it at an event; a run with fewer events than the first one is killed earlier."""
    while (ended := writer.run(*words, last=last))[0] == 0:
        restore()
        last = max(1, min(last, ended[1]) * 3 // 4)
    assert ended[0] == -signal.SIGKILL


def put(home: Path, name: str) -> None:
    """Put the graph there as it was before: as imported, or with the rows of the next day."""
    for old in (*home.glob("shop"), *home.glob(".shop.*")):
        shutil.rmtree(old)
    shutil.copytree(home / f"{name}.kept", home / "shop", copy_function=os.link)


@pytest.fixture(scope="module")
def kept(home: Path, writer: Writer) -> None:
    shutil.copytree(home / "shop", home / "imported.kept")
    assert writer.run("append", "shop", "day.toml")[0] == 0
    shutil.copytree(home / "shop", home / "appended.kept")


CHANGES = {
    "append": ("imported", ("append", "shop", "day.toml")),
    "delete": ("appended", ("append", "shop", "--delete", "user=u1", "--delete", "item=i3")),
    "compact": ("appended", ("compact", "shop")),
}


@pytest.mark.parametrize("number", range(KILLS))
@pytest.mark.parametrize("name", CHANGES)
def test_a_graph_is_the_old_or_the_new_one_after_a_kill(
    home: Path, writer: Writer, kept: None, name: str, number: int
) -> None:
    before, words = CHANGES[name]
    put(home, before)
    old = open_folder(home / "shop").fingerprint
    if words not in writer.whole:
        code, events = writer.run(*words)
        assert code == 0
        writer.whole[words] = events, open_folder(home / "shop").fingerprint
        put(home, before)
    events, new = writer.whole[words]
    killed(writer, words, 1 + number * (events - 1) // (KILLS - 1), partial(put, home, before))
    assert open_folder(home / "shop").fingerprint in (old, new)
    assert verify_folder(home / "shop") == []
    assert writer.run(*words)[0] == 0, "the same command completes the work"
    assert open_folder(home / "shop").fingerprint == new
    assert verify_folder(home / "shop") == []
    assert [path.name for path in home.glob(".shop.*")] == []
    assert [path.name for path in (home / "shop").rglob(".*")] == []


@pytest.mark.parametrize("number", range(KILLS))
def test_an_import_is_there_or_not_after_a_kill(home: Path, writer: Writer, number: int) -> None:
    def clear() -> None:
        for old in (*home.glob("made"), *home.glob(".made.*")):
            shutil.rmtree(old)

    words = ("import", "shop.toml", "made")
    clear()
    if words not in writer.whole:
        code, events = writer.run(*words)
        assert code == 0
        writer.whole[words] = events, open_folder(home / "made").fingerprint
        clear()
    events, whole = writer.whole[words]
    killed(writer, words, 1 + number * (events - 1) // (KILLS - 1), clear)
    if (home / "made").exists():
        assert open_folder(home / "made").fingerprint == whole
        assert verify_folder(home / "made") == []
        return
    assert writer.run(*words)[0] == 0
    assert open_folder(home / "made").fingerprint == whole
    assert verify_folder(home / "made") == []
    assert [path.name for path in home.glob(".made.*")] == []


def scores(folder: Path) -> list[dict[str, object]]:
    """Return the records of a run's epochs, without seconds; [] before the first one."""
    return records(str(folder)) if (folder / "metrics.jsonl").exists() else []


@pytest.mark.parametrize("number", range(KILLS))
def test_a_training_that_was_killed_goes_on_exactly(
    home: Path, writer: Writer, kept: None, number: int
) -> None:
    """The main process, at a change of its run folder: between and inside epochs, and while it saves."""
    put(home, "imported")
    words = ("train", "run.toml", "--epochs", "3", "--checkpoint-steps", "1", "--out")
    shutil.rmtree(home / "run-b", ignore_errors=True)
    if words not in writer.whole:
        code, events = writer.run(*words, "run-a")
        assert code == 0
        writer.whole[words] = events, ""
    events, _ = writer.whole[words]
    last = 1 + number * (events - 1) // (KILLS - 1)
    killed(writer, (*words, "run-b"), last, partial(shutil.rmtree, home / "run-b"))
    if (home / "run-b/checkpoints/last").is_dir():
        assert writer.run("train", "--resume", "run-b")[0] == 0
    else:
        shutil.rmtree(home / "run-b", ignore_errors=True)
        assert writer.run(*words, "run-b")[0] == 0
    assert scores(home / "run-a") == scores(home / "run-b")


@pytest.mark.parametrize("number", range(KILLS))
def test_an_inference_that_was_killed_goes_on_exactly(
    home: Path, writer: Writer, kept: None, number: int
) -> None:
    put(home, "imported")
    if not (home / "trained").is_dir():
        assert writer.run("train", "run.toml", "--epochs", "1", "--out", "trained")[0] == 0

    def clear() -> None:
        for old in (*home.glob("out-b*"), *home.glob(".out-b*")):
            shutil.rmtree(old) if old.is_dir() else old.unlink()

    clear()
    if ("infer",) not in writer.whole:
        code, events = writer.run("infer", "trained", "--out", "out-a.npy")
        assert code == 0
        writer.whole[("infer",)] = events, ""
    events, _ = writer.whole[("infer",)]
    words = ("infer", "trained", "--out", "out-b.npy")
    killed(writer, words, 1 + number * (events - 1) // (KILLS - 1), clear)
    if not (home / "out-b.npy").is_file():
        assert writer.run(*words)[0] == 0
    np.testing.assert_array_equal(np.load(home / "out-a.npy"), np.load(home / "out-b.npy"))


def started(home: Path, gate: Gate, *words: str) -> subprocess.Popen[str]:
    """Start the command on two ranks, which stand at the gate."""
    return subprocess.Popen(
        [sys.executable, "-m", "support.gated_khop", *words, "--procs", "2"], cwd=home,
        env=ENVIRONMENT | gate.environment, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip


def ended(process: subprocess.Popen[str]) -> str:
    """Return what a killed run on two ranks said; no process is left."""
    _, said = process.communicate(timeout=WAIT_S)
    assert process.returncode != 0
    wait_until(lambda: not of_session(process.pid))
    return said


PROCESSES = ("main process", "rank 0", "rank 1")


# An update has eight laps, and an epoch four updates: these are all stages of an update, in four epochs.
LAPS = range(1, 7 * KILLS, 7)
EPOCHS = "5"


@pytest.mark.parametrize("lap", LAPS)
@pytest.mark.parametrize("who", PROCESSES)
def test_two_ranks_of_which_a_process_is_killed_go_on_exactly(
    home: Path, tmp_path: Path, writer: Writer, kept: None, who: str, lap: int
) -> None:
    put(home, "imported")
    words = ("train", "run.toml", "--dropout", "0", "--checkpoint-steps", "1", "--epochs", EPOCHS, "--out")
    if not (home / "ranks-a").is_dir():  # on one process; only dropout depends on the number of ranks
        assert writer.run(*words, "ranks-a")[0] == 0
    shutil.rmtree(home / "ranks-b", ignore_errors=True)
    gate = Gate.shut(tmp_path / "gate", f"lap {lap}")
    with started(home, gate, *words, "ranks-b") as process:
        ranks = gate.wait_for(2, process)
        assert len(scores(home / "ranks-b")) < int(EPOCHS)
        os.kill(process.pid if who == "main process" else ranks[int(who[-1])], signal.SIGKILL)
        said = ended(process)
    assert who == "main process" or f"{who} was killed by SIGKILL" in said
    if (home / "ranks-b/checkpoints/last").is_dir():
        assert writer.run("train", "--resume", "ranks-b")[0] == 0
    else:
        shutil.rmtree(home / "ranks-b")
        assert writer.run(*words, "ranks-b")[0] == 0
    assert len(scores(home / "ranks-b")) == int(EPOCHS)
    for one, other in zip(scores(home / "ranks-b"), scores(home / "ranks-a"), strict=True):
        assert one.keys() == other.keys()
        assert all(one[name] == pytest.approx(other[name], rel=1e-4, abs=1e-4) for name in one)


# Each rank stands there when the kill comes. A stage has 30 or 40 chunks, whichever rank takes more of them.
POINTS = [
    *(f"opened {number}" for number in (1, 2)),
    *(f"drawn {number}" for number in (1, 2, 6)),
    *(f"written {number}" for number in (1, 2, 5, 9, 12)),
    *(f"chunk {number}" for number in (1, 2, 3, 4, 5, 6, 7, 12)),
    *(f"stage {number}" for number in (1, 2)),
]
assert len(POINTS) == KILLS


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("who", PROCESSES)
def test_an_inference_on_two_ranks_of_which_a_process_is_killed_goes_on_exactly(
    home: Path, tmp_path: Path, writer: Writer, kept: None, who: str, point: str
) -> None:
    put(home, "imported")
    if not (home / "trained").is_dir():
        assert writer.run("train", "run.toml", "--epochs", "1", "--out", "trained")[0] == 0
    words = ("infer", "trained", "--evaluation-batch-size", "1", "--out")
    if not (home / "one.npy").is_file():
        assert writer.run(*words, "one.npy")[0] == 0
    for old in (*home.glob("two*"), *home.glob(".two*")):
        shutil.rmtree(old) if old.is_dir() else old.unlink()
    gate = Gate.shut(tmp_path / "gate", point)
    with started(home, gate, *words, "two.npy") as process:
        ranks = gate.wait_for(2, process)
        os.kill(process.pid if who == "main process" else ranks[int(who[-1])], signal.SIGKILL)
        said = ended(process)
    assert who == "main process" or f"{who} was killed by SIGKILL" in said
    assert not (home / "two.npy").exists()
    assert writer.run(*words, "two.npy")[0] == 0
    np.testing.assert_array_equal(np.load(home / "one.npy"), np.load(home / "two.npy"))
    assert [path.name for path in home.glob(".two*")] == []
