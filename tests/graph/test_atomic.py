"""A graph folder appears whole or not at all: real processes, real signals, a real limit on file size.

Work that does not fit on the disk is refused before it starts.

Tasks on threads: results in order, few at once, the first error.

A byte counter adds what it is told, and reports it only to a callback.
"""

from __future__ import annotations

import errno
import os
import resource
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from threading import Event, get_ident

import numpy as np
import pytest

from khop.graph.atomic import UNFINISHED, Meter, check_disk, in_bytes, in_order, new_folder
from khop.graph.build import write_graph
from khop.graph.folder import open_folder
from khop.graph.tables import NodeTable
from khop.graph.verify import verify_folder
from support.commands import PROGRAM

# Forks after the imports, so that a killed writer costs milliseconds. argv: folder, what kills it and when.
WRITER = """
    import os, random, signal, sys, time
    import numpy as np
    import torch
    from khop.graph.atomic import UNFINISHED
    from khop.graph.build import write_graph
    from khop.graph.tables import EdgeTable, NodeTable

    torch.set_num_threads(1)
    home, killer = sys.argv[1:]
    x, ids = np.ones((4_000, 5), np.float32), np.arange(4_000)
    nodes = {"n": NodeTable(columns={"x": x}, splits={"train": ids[:9]})}
    edges = {("n", "to", "n"): EdgeTable(ids[::-1].copy(), ids[::-1].copy(), {"w": x})}

    def die_at_event(number):
        left = [number]
        def hook(event, arguments):
            if event == "os.kill":
                return
            left[0] -= event.startswith(("open", "os.", "fcntl."))
            if left[0] < 0:
                os.kill(os.getpid(), signal.SIGKILL)
        sys.addaudithook(hook)

    def attempt(name, event=None, seconds=None):
        # Whether the writer ended by itself; after `seconds` it is killed from outside.
        child = os.fork()
        if child == 0:
            if event is not None:
                die_at_event(event)
            write_graph(os.path.join(home, name), nodes, edges)
            os._exit(0)
        if seconds is not None:
            time.sleep(seconds)
            os.kill(child, signal.SIGKILL)
        status = os.waitpid(child, 0)[1]
        assert status in (0, signal.SIGKILL), status
        return status == 0

    if killer != "clock":  # at each event, or at one of several
        event = 0
        while not attempt(f"g{event}", event=event):
            event += int(killer)
    else:
        start = time.monotonic()
        attempt("whole")
        whole = time.monotonic() - start
        draw, number, longest = random.Random(7), 0, 1.2 * whole
        while number < 25 or not any(name.endswith(UNFINISHED) for name in os.listdir(home)):
            is_whole = attempt(f"g{number}", seconds=draw.uniform(0, longest))
            longest *= 0.9 if is_whole else 1.1  # as fast as the machine is by now
            number += 1
"""


def python(code: str, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [*PROGRAM, textwrap.dedent(code), *arguments]
    return subprocess.run(command, env=environment, timeout=120, check=False)


def unfinished(home: Path) -> list[Path]:
    return [path for path in home.iterdir() if path.name.endswith(UNFINISHED)]


@pytest.mark.parametrize(
    ("killer", "at_least"),
    [
        ("4", 5),
        pytest.param("1", 20, marks=pytest.mark.long),
        pytest.param("clock", 1, marks=pytest.mark.long),
    ],
)
def test_a_killed_writer_leaves_nothing_that_opens(tmp_path: Path, killer: str, at_least: int) -> None:
    """SIGKILL at every system call that Python reports, or at every fourth, and at random moments."""
    assert python(WRITER, str(tmp_path), killer).returncode == 0
    whole = [path for path in tmp_path.iterdir() if not path.name.startswith(".")]
    assert len(whole) >= 1
    for path in whole:
        assert verify_folder(path) == []
    assert len(unfinished(tmp_path)) >= at_least
    for path in unfinished(tmp_path):
        with pytest.raises(ValueError, match="killed"):
            open_folder(path)


def test_the_next_writer_removes_what_a_killed_one_left(tmp_path: Path) -> None:
    code = """
        import os, signal, sys
        from pathlib import Path
        from khop.graph.atomic import new_folder
        with new_folder(Path(sys.argv[1])) as folder:
            (folder / "half").touch()
            os.kill(os.getpid(), signal.SIGKILL)
    """
    for name in ("g", "g", "other"):
        killed = python(code, str(tmp_path / name))
        assert killed.returncode == -signal.SIGKILL
    assert [path.name.split(".")[1] for path in sorted(unfinished(tmp_path))] == ["g", "other"]
    write_graph(tmp_path / "g", {"n": NodeTable(3)}, {})
    assert [path.name.split(".")[1] for path in unfinished(tmp_path)] == ["other"]


def test_a_living_writer_is_left_alone(tmp_path: Path) -> None:
    with new_folder(tmp_path / "g") as first:
        (first / "first").touch()
        with new_folder(tmp_path / "g") as second:
            (second / "second").touch()
            assert (first / "first").exists()
        (tmp_path / "g").rename(tmp_path / "h")
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["first", "g", "h", "second"]


def test_a_writer_that_has_no_lock_yet_is_left_alone(tmp_path: Path) -> None:
    begun = tmp_path / f".g.begun{UNFINISHED}"
    begun.mkdir()
    write_graph(tmp_path / "g", {"n": NodeTable(3)}, {})
    assert begun.exists()


def test_of_two_writers_the_second_to_finish_says_so(tmp_path: Path) -> None:
    with (
        pytest.raises(ValueError, match=r"g: was written by another process at the same time"),
        new_folder(tmp_path / "g"),
    ):
        write_graph(tmp_path / "g", {"n": NodeTable(3)}, {})
    assert verify_folder(tmp_path / "g") == []
    assert unfinished(tmp_path) == []


def test_what_is_there_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "file").write_text("mine")
    for name in ("file", "folder"):
        with pytest.raises(ValueError, match=rf"{name}: exists already; remove it or choose another name"):
            write_graph(tmp_path / name, {"n": NodeTable(3)}, {})
    (tmp_path / "empty").mkdir()
    assert verify_folder(write_graph(tmp_path / "empty", {"n": NodeTable(3)}, {})) == []


def test_folders_above_are_made(tmp_path: Path) -> None:
    assert verify_folder(write_graph(tmp_path / "a" / "b" / "g", {"n": NodeTable(3)}, {})) == []


@pytest.fixture
def small_files_only() -> Iterator[int]:
    """No file of this process may exceed so many bytes; writing more fails as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, before[1]))
    yield 1 << 16
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_no_space_is_a_clear_error_and_leaves_nothing(tmp_path: Path, small_files_only: int) -> None:
    too_much = np.zeros(small_files_only, np.uint8)
    fits = np.zeros_like(too_much, shape=len(too_much) - 128)  # but for the header
    write_graph(tmp_path / "fits", {"n": NodeTable(columns={"a": fits})}, {})
    with pytest.raises(
        OSError, match=r"too-much: no space .*; nothing was left behind\. Free some space"
    ) as full:
        write_graph(
            tmp_path / "too-much",
            {"n": NodeTable(columns={"x": fits}), "m": NodeTable(columns={"x": too_much})},
            {},
        )
    assert full.value.errno == errno.EFBIG
    assert [path.name for path in tmp_path.iterdir()] == ["fits"]


@pytest.mark.parametrize("stop", [KeyboardInterrupt, MemoryError])
def test_whatever_stops_the_writer_nothing_is_left(tmp_path: Path, stop: type[BaseException]) -> None:
    def notice(what: str, done: int, total: int) -> None:
        if done > 0:
            raise stop

    with pytest.raises(stop):
        write_graph(tmp_path / "g", {"n": NodeTable(columns={"x": np.zeros(9)})}, {}, notice=notice)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_is_readable_by_those_the_umask_allows(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        path = write_graph(tmp_path / "g", {"n": NodeTable(columns={"x": np.zeros(9)})}, {})
    finally:
        os.umask(before)
    assert {oct(entry.stat().st_mode & 0o777) for entry in path.rglob("*") if entry.is_file()} == {"0o644"}
    assert path.stat().st_mode & 0o777 == 0o755


def test_too_little_space_is_said_with_both_sizes(tmp_path: Path) -> None:
    check_disk(tmp_path / "not" / "yet", 1000, "the graph")
    with pytest.raises(ValueError, match=r"x: the graph needs 1,000,000 TB of disk; [\d,.]+ [GT]B are free"):
        check_disk(tmp_path / "x", 10**18, "the graph")


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_results_come_in_order(threads: int) -> None:
    assert list(in_order((partial(pow, n, 2) for n in range(100)), threads)) == [n * n for n in range(100)]


def test_no_more_tasks_begin_than_are_waited_for() -> None:
    begun: list[int] = []
    results = in_order((partial(begun.append, n) for n in range(100)), 2)
    next(results)
    assert len(begun) <= 4
    results.close()
    assert len(begun) <= 4


def test_tasks_run_at_once() -> None:
    first, second = Event(), Event()

    def meet(mine: Event, other: Event) -> int:
        mine.set()
        assert other.wait(60)
        return get_ident()

    assert len(set(in_order([partial(meet, first, second), partial(meet, second, first)], 2))) == 2


@pytest.mark.parametrize("threads", [1, 3])
def test_the_first_error_is_raised(threads: int) -> None:
    results = in_order((partial(divmod, 1, n) for n in (1, 0, 1)), threads)
    assert next(results) == (1, 0)
    with pytest.raises(ZeroDivisionError):
        next(results)


def test_a_meter_reports_item_bytes_done_and_bytes_in_all() -> None:
    reports: list[tuple[str, int, int]] = []
    meter = Meter(10, lambda *report: reports.append(report))
    meter.at("a", 4)
    meter.at("b")
    meter.at("b", 6)
    assert reports == [("a", 4, 10), ("b", 4, 10), ("b", 10, 10)]


def test_a_meter_without_a_callback_counts_too() -> None:
    meter = Meter(3)
    meter.at("a", 2)
    assert meter.done == 2


def test_a_meter_reports_no_more_than_its_total() -> None:
    """Totals of compressed files and of tables with filters are estimates."""
    reports: list[tuple[str, int, int]] = []
    meter = Meter(10, lambda *report: reports.append(report))
    meter.at("a", 25)
    assert reports == [("a", 10, 10)]
    assert meter.done == 25


@pytest.mark.core(4)
@pytest.mark.parametrize(
    ("size", "said"),
    [
        (0, "0 bytes"), (12, "12 bytes"), (999, "999 bytes"), (1000, "1 kB"), (4_540_000, "4.54 MB"),
        (50_000_000, "50 MB"), (99_900_000, "99.9 MB"), (999_700_000, "1,000 MB"), (1_250_000_000, "1.25 GB"),
        (10**12, "1 TB"), (5 * 10**15, "5,000 TB"),
    ],
)  # fmt: skip
def test_sizes_are_for_people(size: int, said: str) -> None:
    assert in_bytes(size) == said
