"""What a rank makes of the run that all of them were given."""

from __future__ import annotations

import pytest
import torch

from khop.cli import ranks
from khop.cli.commands.shared import RankOptions
from khop.cli.options import named
from khop.cli.ranks import as_ranks, set_rank_up
from khop.distributed.processes.group import ALONE, Group
from khop.process_tuning import cores_of_rank, sampler_threads
from khop.run.check import checked
from khop.run.read import RawRun

RECORDED = RawRun({"threads": 16, "compute_threads": 64}, "a/config.toml")  # on a larger machine


def threads_of(raw: RawRun) -> tuple[object, object]:
    return raw.values["threads"], raw.values["compute_threads"]


@pytest.fixture(autouse=True)
def _memory_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks, "tune_memory", lambda: None)


def test_a_rank_takes_its_part_of_the_cores_but_for_what_is_kept() -> None:
    cores = cores_of_rank(2)
    cpu, two = torch.device("cpu"), Group(0, 2, 0, 2)
    assert threads_of(set_rank_up(RECORDED, two, cpu, ())) == (sampler_threads(cores), cores)
    assert threads_of(set_rank_up(RECORDED, two, cpu, {"threads"})) == (16, cores)
    assert threads_of(set_rank_up(RECORDED, two, cpu, named(RECORDED.values))) == (16, 64)
    assert set_rank_up(RECORDED, ALONE, cpu, ()) is RECORDED


@pytest.mark.core(2)
@pytest.mark.parametrize(
    ("cores", "of_cpu", "of_gpu"), [(1, 1, 1), (2, 2, 2), (4, 2, 2), (8, 2, 6), (16, 4, 14), (96, 24, 94)]
)
def test_beside_a_gpu_all_cores_but_two_make_batches(cores: int, of_cpu: int, of_gpu: int) -> None:
    assert (sampler_threads(cores), sampler_threads(cores, "cuda")) == (of_cpu, of_gpu)


def test_zero_is_no_number_of_somebodys() -> None:
    assert named({"threads": 0, "compute_threads": 2, "graph": "debian"}) == {
        "compute_threads",
        "graph",
    }


@pytest.mark.parametrize(
    ("procs", "launched", "expected"),
    [
        (0, False, "procs 0: must be a whole number, 1 or more"),
        (2, True, "the launcher has already started 1 rank;"),
    ],
)
def test_a_number_of_processes_is_never_ignored(
    procs: int, launched: bool, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    of_launcher = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    for name, value in {**of_launcher, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value) if launched else monkeypatch.delenv(name, raising=False)
    config = checked(RawRun({"graph": "debian"}, "run.toml"))
    with pytest.raises(ValueError, match=expected):
        as_ranks(lambda *_: None, None, config, RankOptions(procs=procs))
