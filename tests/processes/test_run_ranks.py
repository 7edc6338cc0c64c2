"""Every task and loss takes the same course on any number of processes, on parts, and resumed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

import khop
from khop.cli.run_folder import write_config
from khop.distributed.processes.group import ALONE
from khop.inference.propagation import Propagation
from khop.loading.ordered_map import FEW_IN_FLIGHT
from khop.run.check import checked
from khop.training.step_clock import Unwatched
from processes.run_ranks import COURSES, RUNS, STARTED, raw_run, starts, trained, trains, transforms
from support.gate import WAIT_S
from support.killed_runs import killed_and_continued
from support.small_labeled import write_labeled_graph
from support.started_ranks import StartedRanks
from training.test_evaluations import assert_equal_runs

pytestmark = [
    pytest.mark.filterwarnings("ignore:R-GCN averages the drawn edges"),
    pytest.mark.timeout(1800),  # the first long test of some ranks trains their runs
]
# As MLPerf's: see examples/mlperf_rgat.toml.
RGAT = {"task": {"label": "kind"}, "model": {"kind": "rgat", "heads": 2, "dropout": 0.2}}
# One of each way in which ranks depend on each other: rows of embeddings, evaluations, scores, negatives.
FEW = ("clipped, sharded embeddings", "plateau", "within epochs", "mlp")
OF_FOUR_RANKS = (
    *FEW, "regression", "multi-label, micro-batches", "adamw", "numbers of edges",
    "gcn over labor", "propagated columns", "hard and shared", "infonce, micro-batches", "margin",
)  # fmt: skip


def folders(path: Path) -> tuple[str, str]:
    """A graph with propagated columns, and its parts."""
    graph = path / "graph"
    plan = Propagation.of(write_labeled_graph(path / "given"), graph, ["x"], 2, "mean", 1 << 20)
    plan.run(ALONE, FEW_IN_FLIGHT)
    khop.partition_graph(graph, path / "parts", 2)
    return str(graph), str(path / "parts")


def train_alone(arguments: tuple[object, ...]) -> None:
    """Train runs in this process."""
    threads = torch.get_num_threads()
    with torch.random.fork_rng():
        trains(0, torch.device("cpu"), *arguments)  # type: ignore[arg-type]
    torch.set_num_threads(threads)


def train_on_ranks(procs: int, home: Path, names: Sequence[str], courses: Sequence[str]) -> None:
    """Train runs on some ranks, where `folders` wrote the graphs."""
    arguments = (str(home / "graph"), str(home / "parts"), str(home), names, courses)
    khop.launch(
        trains, procs=procs, arguments=arguments, device="cpu", deadline=WAIT_S, allow=["oversubscribe"]
    )


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All runs as one process trains them."""
    path: Path = tmp_path_factory.mktemp("runs")
    train_alone((*folders(path), str(path)))
    return path


@pytest.fixture(scope="module")
def two_ranks(home: Path) -> Path:
    """All runs as two ranks train them, too."""
    train_on_ranks(2, home, tuple(RUNS), COURSES)
    return home


@pytest.fixture(scope="module")
def four_ranks(home: Path) -> Path:
    """Some runs as four ranks train them on the parts, too."""
    train_on_ranks(4, home, OF_FOUR_RANKS, ["parts"])
    return home


def lines(path: Path) -> list[dict[str, Any]]:
    return [
        {key: value for key, value in json.loads(line).items() if key not in ("seconds", "traffic")}
        for line in path.read_text().splitlines()
    ]


def assert_one_course(home: Path, name: str, procs: int, courses: Sequence[str] = COURSES) -> None:
    """The runs of some ranks have the losses and scores of one process on the whole graph."""
    for log in ("steps", "metrics"):
        expected = lines(home / "1" / name / "whole" / f"{log}.jsonl")
        for course in courses:
            found = lines(home / str(procs) / name / course / f"{log}.jsonl")
            assert found == [pytest.approx(record, rel=1e-9) for record in expected], (procs, course)


@pytest.mark.long
@pytest.mark.parametrize("name", RUNS)
def test_a_stop_and_parts_do_not_change_the_course(home: Path, name: str) -> None:
    losses = [record["loss"] for record in lines(home / "1" / name / "whole" / "metrics.jsonl")]
    assert losses[-1] < losses[0]
    assert_one_course(home, name, 1)


@pytest.mark.long
@pytest.mark.parametrize("name", RUNS)
def test_two_ranks_have_the_course_of_one_process(two_ranks: Path, name: str) -> None:
    assert_one_course(two_ranks, name, 2)


@pytest.mark.long
@pytest.mark.parametrize("name", OF_FOUR_RANKS)
def test_four_ranks_of_parts_have_the_course_of_one_process(four_ranks: Path, name: str) -> None:
    assert_one_course(four_ranks, name, 4, ["parts"])


@pytest.mark.long
def test_two_ranks_of_parts_and_a_resume_have_the_course_of_one_process(
    tmp_path: Path, ranks: StartedRanks
) -> None:
    arguments, courses = (*folders(tmp_path), str(tmp_path), FEW), ("parts", "resumed")
    train_alone((*arguments, ("whole",)))
    ranks.launch(trains, 2, (*arguments, courses))
    for name in FEW:
        assert_one_course(tmp_path, name, 2, courses)
    for course in courses:  # epochs 1 and 2, and 3 and 4, do not improve
        saved = khop.load_checkpoint(tmp_path / "2" / "plateau" / course / "checkpoints" / "last")
        assert saved.training["plateau_scale"] == 0.25


@pytest.mark.parametrize("procs", [2, pytest.param(4, marks=pytest.mark.long)])
def test_ranks_transform_their_batches_and_make_batches_of_any_seeds(
    procs: int, tmp_path: Path, ranks: StartedRanks
) -> None:
    graph, parts = folders(tmp_path)
    arguments = ({"whole": graph, "parts": parts}, str(tmp_path))
    transforms(0, torch.device("cpu"), *arguments)
    ranks.launch(transforms, procs, arguments)
    expected = json.loads((tmp_path / "whole-1-0.json").read_text())
    assert len(expected) == 4
    for name in ("whole", "parts"):
        of_ranks = [
            json.loads((tmp_path / f"{name}-{procs}-{rank}.json").read_text()) for rank in range(procs)
        ]
        found = [sum(sums) for sums in zip(*of_ranks, strict=True)]
        assert found == [pytest.approx(value, rel=1e-9) for value in expected], name


@pytest.mark.long
def test_a_run_starts_from_another_one_on_any_number_of_ranks_and_on_parts(
    tmp_path: Path, ranks: StartedRanks
) -> None:
    """Parts number the nodes anew: embeddings are found by the numbers before."""
    graph, parts = folders(tmp_path)
    first = raw_run(graph, STARTED)
    trained(first, tmp_path / "first", Unwatched())
    write_config(tmp_path / "first", checked(first))
    arguments = ({"whole": graph, "parts": parts}, str(tmp_path / "first"), str(tmp_path))
    with torch.random.fork_rng():
        starts(0, torch.device("cpu"), *arguments)
    for procs in (2, 4):
        ranks.launch(starts, procs, arguments)
    expected = lines(tmp_path / "1" / "whole" / "steps.jsonl")
    fresh = lines(tmp_path / "first" / "steps.jsonl")
    assert expected[0]["loss"] != pytest.approx(fresh[0]["loss"], rel=1e-3)
    for course in ("1/parts", "2/whole", "2/parts", "4/whole", "4/parts"):
        found = lines(tmp_path / course / "steps.jsonl")
        assert found == [pytest.approx(record, rel=1e-9) for record in expected], course


@pytest.mark.long
@pytest.mark.parametrize("name", ["within epochs", "propagated columns", "started", "rgat"])
def test_a_killed_run_continues_with_equal_bits(name: str, tmp_path: Path) -> None:
    graph, _ = folders(tmp_path)
    first = raw_run(graph, STARTED)
    tables = {**RUNS, "started": STARTED, "rgat": RGAT}[name] | {"checkpoint": {"steps": 1}}
    values = {**raw_run(graph, tables).values, "compute_threads": 1}
    if name == "started":
        trained(first, tmp_path / "first", Unwatched())
        write_config(tmp_path / "first", checked(first))
        values = {**values, "start_from": str(tmp_path / "first"), "start_optimizer": True}
    assert_equal_runs(*killed_and_continued(values, tmp_path))


@pytest.mark.long
@pytest.mark.parametrize("name", [name for name in RUNS if name.endswith(", micro-batches")])
def test_micro_batches_do_not_change_the_course(home: Path, name: str) -> None:
    whole, split = (home / "1" / of / "whole" for of in (name.removesuffix(", micro-batches"), name))
    for log in ("steps", "metrics"):
        expected = lines(whole / f"{log}.jsonl")
        assert lines(split / f"{log}.jsonl") == [pytest.approx(record, rel=1e-9) for record in expected]
