"""Ranks start, share, fail and stop together, and none is left behind."""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn

import khop
from khop.api.launch import check_procs, run_rank
from khop.distributed.processes.group import ALONE, Group
from khop.distributed.processes.launchers import Listening, RankInfo
from khop.errors import PeerLost
from khop.process_tuning import usable_cores
from processes.ranks import (
    BATCH_SIZE,
    LONG_S,
    TAKEN,
    loader_of,
    lone_loaders,
    misbehaves,
    own_loop,
    pyg_loaders,
    seeds_of,
    sliced,
    uneven_calls,
)
from support.commands import ENVIRONMENT, TORCHRUN, children, free_port, shared_memory_of
from support.gate import WAIT_S, wait_until
from support.small_folders import write_learnable_graph
from support.started_ranks import StartedRanks


def results(folder: Path) -> list[dict[str, object]]:
    return [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]


def joined(lists: Iterable[list[int]]) -> list[int]:
    return list(itertools.chain.from_iterable(lists))


def test_a_custom_loop_trains_alike_on_any_number_of_ranks(tmp_path: Path) -> None:
    """22 seeds in steps of 10, 10 and 2, so that with three ranks one gets none of the last."""
    opened = khop.open_graph(write_learnable_graph(tmp_path / "toy"))
    train = opened.split("train")["item"][:22]
    found = {}
    for procs in (1, 3):
        folder = tmp_path / str(procs)
        folder.mkdir()
        khop.launch(own_loop, procs=procs, arguments=(opened, train, str(folder)), device="cpu")
        found[procs] = results(folder)
    (alone,), together = found[1], found[3]
    assert len(together) == 3
    for name in ("losses", "score", "is_training", "state"):
        assert all(of_rank[name] == together[0][name] for of_rank in together)
    assert together[0]["losses"] == pytest.approx(alone["losses"], rel=1e-9)
    assert together[0]["score"] == alone["score"]
    assert together[0]["is_training"] is True

    for rank, of_rank in enumerate(together):
        assert of_rank["plain"] == [[2, rank % 2], [3, 0], [3, 1], [3, 2]]

    shares = [of_rank["seeds"] for of_rank in together]
    assert [len(seeds) for seeds in zip(*shares, strict=True)][2] == 3
    assert [] in [of_rank[2] for of_rank in shares]
    assert [joined(of_step) for of_step in zip(*shares, strict=True)] == alone["seeds"]
    for epoch in (0, 3):
        assert sorted(joined(alone["seeds"][epoch : epoch + 3])) == train.sort().values.tolist()
    loader = loader_of(opened, train)
    loader.load_state_dict(together[2]["state"])  # three ranks began, one process ends the epoch
    assert [batch.seeds.tolist() for batch in loader.epoch(0)] == alone["seeds"][TAKEN:3]
    assert len(alone["seeds"][0]) == BATCH_SIZE


@pytest.mark.core(1)
@pytest.mark.parametrize(
    ("how", "error", "sentence"),
    [
        ("kill", PeerLost, r"^rank 1 was killed by SIGKILL"),
        ("raise", RuntimeError, r"rank 1 failed with KeyError: 'mine'(.|\n)*_misbehave"),
        (
            "evaluates alone",
            PeerLost,
            r"rank 1 is .*, rank 0 called evaluate\(\).*it is collective, call it on every",
        ),
    ],
    ids=str,
)
def test_an_error_in_one_rank_ends_all_and_is_reported(
    how: str, error: type[Exception], sentence: str
) -> None:
    """Long before their deadline, which is longer than any test may take."""
    before = children(os.getpid())  # ranks that tests of other files share
    with pytest.raises(error, match=sentence):
        khop.launch(misbehaves, procs=2, arguments=(how,), device="cpu", deadline=LONG_S)
    assert sorted(children(os.getpid())) == sorted(before)


STOPPED = f"""
from processes.ranks import misbehaves
import khop

if __name__ == "__main__":
    khop.launch(misbehaves, arguments=("stop",), device="cpu", deadline={LONG_S})
"""


@pytest.mark.long
def test_a_rank_that_stands_still_under_torchrun_is_named_when_the_deadline_is_over(tmp_path: Path) -> None:
    """SIGSTOP: its connections stay open and nothing comes, as from a machine that hangs.

    Rank 0 shortens its deadline when the other stands still: imports do not count.
    """
    script = tmp_path / "stopped.py"
    script.write_text(STOPPED)
    agent = subprocess.Popen(
        [*TORCHRUN, "2", str(script)],
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert agent.stdout is not None
    stopped, told = 0, ""
    try:
        for told in agent.stdout:
            if found := re.search(r"rank 1 is (\d+)", told):
                stopped = int(found[1])
            if "PeerLost: " in told:
                break
        assert re.search(
            r"rank 1 \(host .*\) no longer responds; last seen computing in epoch 2, step 3\. "
            r"Rank 0 waited exchanging losses in epoch 2, step 3",
            told,
        )
    finally:
        os.kill(stopped or agent.pid, signal.SIGKILL)  # torchrun itself would wait 30 s before it does
        agent.communicate(timeout=WAIT_S)
    assert agent.returncode != 0


ENDLESS = """
import sys
from processes.ranks import misbehaves
import khop

if __name__ == "__main__":
    graph = khop.open_graph(sys.argv[1]).only([("item", "like", "item")])
    khop.launch(misbehaves, procs=2, arguments=("endless", graph), device="cpu")
"""


@pytest.mark.core(1)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL], ids=["ctrl-c", "parent killed"])
def test_when_the_parent_is_stopped_or_killed_nothing_is_left(tmp_path: Path, number: signal.Signals) -> None:
    """No process, no shared memory of the graph that it had, no socket."""
    script, scratch = tmp_path / "endless.py", tmp_path / "scratch"
    scratch.mkdir()
    script.write_text(ENDLESS)
    graph = write_learnable_graph(tmp_path / "toy")
    parent = subprocess.Popen(
        [sys.executable, script, graph],
        env=ENVIRONMENT | {"TMPDIR": str(scratch)},
        start_new_session=True,
        stderr=subprocess.DEVNULL,
    )
    wait_until(lambda: len(children(parent.pid)) == 2)
    ranks = children(parent.pid)
    time.sleep(1)  # in the middle of their imports, or of their work, as the machine will
    parent.send_signal(number)
    parent.wait(timeout=WAIT_S)
    wait_until(lambda: not any(Path(f"/proc/{rank}").exists() for rank in ranks))
    # Of a parent that was killed others clear that away, which are told by its end.
    wait_until(lambda: shared_memory_of([parent.pid, *ranks]) == list(scratch.iterdir()) == [])


def launched(monkeypatch: pytest.MonkeyPatch, **environment: object) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, str(value))


def nothing(rank: int, device: torch.device) -> None:
    """What a rank does that has nothing to do."""


def test_a_rank_that_never_arrives_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    launched(monkeypatch, RANK=0, WORLD_SIZE=3, MASTER_ADDR="127.0.0.1", MASTER_PORT=free_port())
    with pytest.raises(
        PeerLost, match=r"ranks 1, 2 did not arrive within 1 s; those of 3 that did: 0 \(host "
    ):
        khop.launch(nothing, device="cpu", deadline=1.0)


def test_ranks_that_met_but_do_not_connect_within_the_deadline_say_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    over = threading.Event()
    monkeypatch.setattr(torch.distributed, "init_process_group", lambda *_, **__: over.wait())
    launched(monkeypatch, RANK=0, WORLD_SIZE=1, MASTER_ADDR="127.0.0.1", MASTER_PORT=free_port())
    with pytest.raises(
        PeerLost,
        match=r"rank 0 \(host .*\) found the other ranks but could not connect to all of them: open "
        r"all ports between the machines.*There was no answer within 1 s$",
    ):
        khop.launch(nothing, device="cpu", deadline=1.0)
    over.set()


def test_a_port_in_use_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket(socket.AF_INET6) as taken:
        taken.bind(("::", 0))
        taken.listen()
        port = taken.getsockname()[1]
        launched(monkeypatch, RANK=0, WORLD_SIZE=2, MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
        with pytest.raises(
            OSError, match=rf"port {port} of this machine is in use.*set MASTER_PORT to a free one"
        ):
            khop.launch(nothing, device="cpu", deadline=1.0)


def test_numbers_of_processes_that_cannot_be_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="procs 0: must be a whole number, 1 or more"):
        khop.launch(nothing, procs=0, device="cpu")
    too_many = "procs 1000: each needs a separate GPU, and this machine has"
    without_gpu = "device 'cuda': torch finds no CUDA device"
    with pytest.raises(ValueError, match=too_many if torch.cuda.is_available() else without_gpu):
        khop.launch(nothing, procs=1000, device="cuda")
    most = 4 * usable_cores()
    with pytest.raises(
        ValueError, match=rf"procs {most + 1}: more than 4 per core.*use {most} at most, or allow more"
    ):
        khop.launch(nothing, procs=most + 1, device="cpu")
    check_procs(most + 1, "cpu", ["oversubscribe"])
    launched(monkeypatch, RANK=0, WORLD_SIZE=2, MASTER_ADDR="127.0.0.1")
    with pytest.raises(ValueError, match="procs 3: the launcher has already started 2 ranks"):
        khop.launch(nothing, procs=3, device="cpu")


@pytest.mark.parametrize(("kind", "wanted"), [("cuda", "0"), ("cpu", None)])
def test_nccl_does_not_end_a_rank_before_khop_has_named_the_lost_one(
    monkeypatch: pytest.MonkeyPatch, kind: str, wanted: str | None
) -> None:
    @contextmanager
    def alone(*_: object) -> Iterator[Group]:
        yield ALONE

    name, found = "TORCH_NCCL_ASYNC_ERROR_HANDLING", list[str | None]()

    def work(rank: int, device: torch.device) -> None:
        found.append(os.environ.get(name))

    monkeypatch.setattr("khop.api.launch.joined", alone)
    monkeypatch.setattr("khop.api.launch.num_gpus", lambda: 1)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    threads = torch.get_num_threads()
    try:
        run_rank(RankInfo(0, 1, 0, 1, "127.0.0.1", 1), work, (), kind, 1.0, Listening())
    finally:
        torch.set_num_threads(threads)
    assert found == [wanted]
    assert name not in os.environ


def test_a_launcher_may_start_as_many_processes_as_it_likes(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[int] = []
    monkeypatch.setattr("khop.api.launch.run_rank", lambda placement, *_: begun.append(placement.world_size))
    launched(monkeypatch, RANK=0, WORLD_SIZE=99999, LOCAL_WORLD_SIZE=99999, MASTER_ADDR="127.0.0.1")
    khop.launch(nothing, device="cpu")
    assert begun == [99999]


LAUNCHES = """
import khop
from functools import partial
def work(rank, device, *more): pass
class Settings: pass
if __name__ == "__main__":
    khop.launch({call}, procs=2, device="cpu")
    print("ended")
"""
IN_MAIN = (
    r"^ValueError: (function work|class Settings) is defined in a notebook, on stdin or by python -c, "
    r".*, or use procs=1$"
)


def ran(code: str, how: str, folder: Path) -> tuple[int, str, str]:
    """Run a script from stdin, as a cell of a notebook, or from a file."""
    script = folder / "script.py"
    script.write_text(code)
    if how == "notebook":  # a kernel's __main__ has no file, and runs the source of cells
        code = (
            f"import sys; sys.modules['__main__'].__dict__.pop('__file__', None)\nexec({code!r}, globals())"
        )
    commands = {"file": [str(script)], "stdin": ["-"], "profile": ["-m", "cProfile", str(script)]}
    done = subprocess.run(
        [sys.executable, *commands.get(how, ["-c", code])],
        input=code if how == "stdin" else None,
        env=ENVIRONMENT,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.long
@pytest.mark.parametrize("how", ["stdin", "notebook"])
@pytest.mark.parametrize("call", ["partial(work)", "print, arguments=[Settings()]"])
def test_a_function_that_ranks_cannot_import_is_refused_in_a_sentence(
    how: str, call: str, tmp_path: Path
) -> None:
    code, out, err = ran(LAUNCHES.format(call=call), how, tmp_path)
    assert (code, out) == (1, "")
    assert re.search(IN_MAIN, err.splitlines()[-1])


@pytest.mark.long
@pytest.mark.parametrize("how", ["notebook", "stdin"])
def test_an_imported_function_runs_from_anywhere(how: str, tmp_path: Path) -> None:
    (tmp_path / "of_file.py").write_text("def work(rank, device, *more): pass\n")
    code, out, err = ran(LAUNCHES.format(call="__import__('of_file').work"), how, tmp_path)
    assert (code, out) == (0, "ended\n"), err


def test_lambdas_and_functions_of_functions_are_refused_in_a_sentence() -> None:
    def inner(rank: int, device: torch.device) -> None: ...

    with pytest.raises(
        ValueError, match=r"<lambda>: is a lambda, but the processes of ranks import functions"
    ):
        khop.launch(lambda rank, device: None, procs=2, device="cpu")
    with pytest.raises(ValueError, match=r"inner: is defined inside a function, .* top level of a module"):
        khop.launch(partial(inner), procs=2, device="cpu")
    with pytest.raises(ValueError, match=r"<lambda>: is a lambda"):
        khop.launch(misbehaves, procs=2, arguments=(lambda: None,), device="cpu")


def _model() -> nn.Module:
    model = nn.Linear(2, 2)
    model.activation = lambda rows: rows
    return model


@pytest.mark.core(2)
@pytest.mark.parametrize(
    ("made", "reason"),
    [
        (lambda: (misbehaves, [[lambda: None]]), "Can't pickle .*lambda"),
        (lambda: (misbehaves, [{"key": lambda: None}]), "Can't pickle .*lambda"),
        (lambda: (partial(misbehaves, lambda: None), []), "Can't pickle .*lambda"),
        (lambda: (misbehaves, [_model()]), "Can't pickle .*lambda"),
        (lambda: (misbehaves, [threading.Lock()]), "cannot pickle '_thread.lock' object"),
        (lambda: (torch.compile(misbehaves, backend="eager"), []), "Can't pickle .*misbehaves"),
    ],
    ids=["list", "mapping", "partial", "model", "lock", "compiled"],
)
def test_what_cannot_be_sent_to_ranks_is_one_sentence(
    made: Callable[[], tuple[Callable[..., None], list[object]]], reason: str
) -> None:
    function, arguments = made()
    before = children(os.getpid())
    sentence = rf"^the function or its arguments cannot be sent .*: {reason}.*; define .*, or use procs=1$"
    with pytest.raises(ValueError, match=sentence) as caught:
        khop.launch(function, procs=2, arguments=arguments, device="cpu")
    assert caught.value.__suppress_context__
    assert sorted(children(os.getpid())) == sorted(before)


@pytest.mark.long
def test_a_profiled_script_runs_or_is_told_why_it_cannot(tmp_path: Path) -> None:
    code, out, err = ran(LAUNCHES.format(call="work"), "profile", tmp_path)
    if code:  # the profiler of Python 3.11 does not make the script the main module
        sentence = r"^ValueError: the function or its arguments cannot be sent .*work.* on __main__ failed; "
        assert re.search(sentence, err.splitlines()[-1])
    else:
        assert out.startswith("ended")


@pytest.mark.long
def test_a_script_without_a_guard_is_told_so_once(tmp_path: Path) -> None:
    code, _, err = ran(
        LAUNCHES.format(call="work").replace('__name__ == "__main__"', "True"), "file", tmp_path
    )
    assert code == 1
    assert err.count('call it under\nif __name__ == "__main__":') == 1
    assert "Traceback" not in err


DIFFERENT = [
    r"ranks.py:\d+.*11 seeds on rank 0, 11 on rank 1, not the same list.*give every rank the whole list",
    r"22 seeds on rank 0, 22 on rank 1, not the same list",
    "batch_size is 10 on rank 0 and 11 on rank 1. Give the same settings on every",
    "different loaders.*: seed is 0 on rank 0 and 1 on rank 1",
    "different loaders.*: micro_batches is 1 on rank 0 and 2 on rank 1",
]


def test_loaders_that_differ_between_ranks_are_errors(ranks: StartedRanks, tmp_path: Path) -> None:
    opened = khop.open_graph(write_learnable_graph(tmp_path / "toy"))
    ranks.launch(seeds_of, 2, (opened, opened.split("train")["item"][:22], "different", str(tmp_path)))
    for rank in range(2):
        lines = (tmp_path / f"{rank}.txt").read_text().splitlines()
        for line, expected in zip(lines, DIFFERENT, strict=True):
            assert re.search(expected, line)


@pytest.mark.core(1)
@pytest.mark.parametrize("where", ["training", "resume", "evaluation", "restored loop", "batch"])
def test_a_slice_of_the_seeds_per_rank_is_an_error_wherever_ranks_divide_them(
    ranks: StartedRanks, tmp_path: Path, where: str
) -> None:
    opened = khop.open_graph(write_learnable_graph(tmp_path / "toy"))
    ranks.launch(sliced, 2, (opened, where, str(tmp_path)))
    for rank in range(2):
        sentence = (tmp_path / f"{rank}.txt").read_text()
        assert sentence.startswith("the ranks gave different seeds to a khop.Loader (rank 0 at ranks.py:")
        assert "12 seeds on rank 0, 12 on rank 1, not the same list" in sentence
        assert "give every rank the whole list" in sentence


def test_a_loader_of_one_rank_over_partitions_of_all_is_refused(ranks: StartedRanks, tmp_path: Path) -> None:
    khop.partition_graph(write_learnable_graph(tmp_path / "toy"), tmp_path / "parts", 2)
    out = tmp_path / "out"
    out.mkdir()
    ranks.launch(lone_loaders, 2, (str(tmp_path / "parts"), str(out)))
    refused = (
        'ranks="this": the graph is partitioned across ranks, so every rank takes part in every batch; leave '
        'ranks out, or open the graph with placement="whole"'
    )
    assert results(out) == [{"features": refused, "all": refused, "whole": True}] * 2


def test_a_rank_without_seeds_joins_a_batch_of_given_seeds(ranks: StartedRanks, tmp_path: Path) -> None:
    khop.partition_graph(write_learnable_graph(tmp_path / "toy"), tmp_path / "parts", 4)
    out = tmp_path / "out"
    out.mkdir()
    ranks.launch(uneven_calls, 4, (str(tmp_path / "parts"), str(out)))
    assert results(out) == [[[3, 5, 4]] * 2, [[]] * 2, [[]] * 2, [[]] * 2]


@pytest.mark.long
def test_a_loader_that_one_rank_alone_uses_is_named(tmp_path: Path) -> None:
    opened = khop.open_graph(write_learnable_graph(tmp_path / "toy"))
    arguments = (opened, opened.split("train")["item"][:22], "used by one rank", str(tmp_path))
    sentence = r"ranks.py:\d+ \(loader 1 of this process, 22 seeds, batch_size 10\), but rank 1 did not"
    with pytest.raises((RuntimeError, PeerLost), match=sentence):
        khop.launch(seeds_of, procs=2, arguments=arguments, device="cpu", deadline=WAIT_S)


def test_a_loader_of_this_rank_does_not_divide_its_seeds(ranks: StartedRanks, tmp_path: Path) -> None:
    opened = khop.open_graph(write_learnable_graph(tmp_path / "toy"))
    train = opened.split("train")["item"][:22]
    out = tmp_path / "out"
    out.mkdir()
    ranks.launch(seeds_of, 2, (opened, train, "this", str(out)))
    first, second = results(out)
    whole, half, lone, shuffled, *others = first
    assert sorted(whole + second[0]) == sorted(train.tolist())
    assert half + second[1] == train.tolist()
    assert lone == train.tolist()
    assert sorted(shuffled) == sorted(lone)
    for mine, theirs in zip(others, second[2:], strict=True):
        assert sorted(mine + theirs) == sorted(train.tolist())


@pytest.mark.long
def test_loaders_of_pyg_say_once_that_ranks_use_all_seeds(ranks: StartedRanks, tmp_path: Path) -> None:
    ranks.launch(pyg_loaders, 2, (str(tmp_path),))
    (used, told), (others, silent) = results(tmp_path)
    assert used == others == [0, 1, 2] * 2
    assert len(told) == 1
    assert "each of the 2 ranks uses all seeds that it is given" in told[0]
    assert silent == []


OF_TORCH = """
import sys
from datetime import timedelta
from torch import distributed
from processes.ranks import seeds_of
import khop

if __name__ == "__main__":
    distributed.init_process_group("gloo")
    graph = khop.open_graph(sys.argv[1])
    distributed.barrier()  # ranks start at different times
    distributed.distributed_c10d._get_default_store().set_timeout(timedelta(seconds=8))
    train = graph.split("train")["item"][:22]
    seeds_of(distributed.get_rank(), "cpu", graph, train, sys.argv[2], sys.argv[3])
    distributed.barrier()
"""


@pytest.mark.long
@pytest.mark.parametrize(
    ("how", "sentence"),
    [
        ("own slice", "11 seeds on rank 0, 11 on rank 1, not the same list"),
        ("made by one rank", "22 seeds, batch_size 7), but rank 1 did not within 8 s"),
    ],
)
def test_loaders_are_compared_in_a_process_group_of_the_script(
    how: str, sentence: str, tmp_path: Path
) -> None:
    script = tmp_path / "script.py"
    script.write_text(OF_TORCH)
    graph = write_learnable_graph(tmp_path / "toy")
    command = [*TORCHRUN, "2", str(script), str(graph), how, str(tmp_path)]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True)
    assert done.returncode != 0
    assert sentence in done.stderr
