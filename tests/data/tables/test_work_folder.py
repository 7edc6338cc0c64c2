"""Imports that are killed go on at the last finished stage, with the same bits."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from khop.data.tables.pipeline import ImportFolder
from support.commands import PROGRAM

SPEC = """
[splits]
time = { val = 2020-01-01T00:00:00.040Z, test = 2020-01-01T00:00:00.050Z }
[nodes.user]
files = ["users.parquet"]
id = "id"
columns.age = "number"
[nodes.item]
[edges."user buys item"]
files = ["events/*.parquet"]
source = "user"
destination = "item"
time = "ts"
reverse = "bought-by"
columns.price = "number"
orphans = "drop"
"""

# Some times: an import that kills itself at the n-th report of progress, and one that goes on to the end. Prints if the kill
# struck, and if the second made fewer reports than an import from the start.
SCRIPT = """
import os, shutil, signal, sys
from pathlib import Path
from khop.data.tables.pipeline import run_import
from khop.data.tables.read_spec import read_spec
from khop.data.tables.source import SourceFolder
def importing(kill_at, reports, out):
    seen = [0]
    def notice(what, done, total):
        seen[0] += 1
        if seen[0] == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
    spec = read_spec(Path("spec.toml"))
    run_import(spec, Path(out), SourceFolder(Path(), {}), memory=100_000, threads=1, notice=notice)
    os.write(reports, f"{seen[0]}\\n".encode())
def child(kill_at, out):
    reader, writer = os.pipe()
    if os.fork() == 0:
        try:
            importing(kill_at, writer, out)
        finally:
            os._exit(0)
    os.close(writer)
    _, status = os.wait()
    return os.WTERMSIG(status), os.read(reader, 100).decode().strip()
_, total = child(0, "whole")
right = open("whole/graph.json").read()
kills = int(sys.argv[1])
for number in range(kills):
    signal_of, _ = child(1 + int(total) * number // kills, "killed")
    _, rest = child(0, "killed")
    assert open("killed/graph.json").read() == right
    shutil.rmtree("killed")
    print(signal_of == signal.SIGKILL, int(rest) < int(total))
"""


@pytest.fixture
def tables(tmp_path: Path) -> Path:
    random = np.random.default_rng(1)
    users = [f"u{n}" for n in range(3000)]
    pq.write_table(pa.table({"id": users, "age": random.random(3000)}), tmp_path / "users.parquet")
    (tmp_path / "events").mkdir()
    for part in range(3):
        times = pa.array(1_577_836_800_000 + random.integers(0, 60, 4000), pa.timestamp("ms", "UTC"))
        events = {
            "user": [f"u{n}" for n in random.integers(3010, size=4000)],
            "item": [f"i{n}" for n in random.integers(50, size=4000)],
            "ts": times,
            "price": random.random(4000),
        }
        pq.write_table(pa.table(events), tmp_path / f"events/{part}.parquet", row_group_size=1500)
    (tmp_path / "spec.toml").write_text(SPEC)
    return tmp_path


@pytest.mark.parametrize("kills", [1, pytest.param(20, marks=pytest.mark.long)])
def test_kills_over_all_stages_lead_to_the_same_bits(kills: int, tables: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", *PROGRAM[1:], SCRIPT, str(kills)],
        cwd=tables,
        capture_output=True,
        text=True,
        check=True,
    )
    outcomes = [line.split() for line in done.stdout.splitlines()]
    assert [killed for killed, _ in outcomes] == ["True"] * kills
    assert sum(fewer == "True" for _, fewer in outcomes) >= kills // 3  # before that, no stage is over
    assert sorted(path.name for path in tables.iterdir()) == ["events", "spec.toml", "users.parquet", "whole"]


def interrupted(out: Path, act: Callable[[ImportFolder], dict[str, Any]]) -> dict[str, Any]:
    """Work in the folder, and end as by Ctrl-C."""
    done: dict[str, Any] = {}
    with suppress(KeyboardInterrupt), ImportFolder.open(out, "same") as work:
        done = act(work)
        raise KeyboardInterrupt
    return done


def test_a_finished_stage_is_not_made_again(tmp_path: Path) -> None:
    made: list[str] = []

    def make() -> dict[str, int]:
        made.append("x")
        return {"count": len(made)}

    for _ in range(2):
        assert interrupted(tmp_path / "out", lambda work: work.stage("one", make)) == {"count": 1}
    with ImportFolder.open(tmp_path / "out", "changed") as work:
        assert work.stage("one", make) == {"count": 2}
        (work.graph / "x").touch()
        work.publish()
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_an_error_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="bad row"), ImportFolder.open(tmp_path / "out", "same"):
        raise ValueError("bad row")
    assert list(tmp_path.iterdir()) == []


def test_two_processes_do_not_import_to_one_folder(tmp_path: Path) -> None:
    with (
        ImportFolder.open(tmp_path / "out", "same"),
        pytest.raises(ValueError, match="out: another process is importing to it; wait until it ends"),
        ImportFolder.open(tmp_path / "out", "same"),
    ):
        pass


def test_a_process_killed_after_it_published_leaves_no_trap(tmp_path: Path) -> None:
    def publish(work: ImportFolder) -> dict[str, Any]:
        work.stage("one", dict)
        work.graph.rename(work.out)
        return {}

    interrupted(tmp_path / "out", publish)
    (tmp_path / "out").rmdir()
    with ImportFolder.open(tmp_path / "out", "same") as work:
        assert work.stage("one", lambda: {"again": 1}) == {"again": 1}
