"""Inference and evaluation of parts over ranks give what one process does: of the parts, bit for bit."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path

import numpy as np
import pyarrow.parquet
import pytest
import torch
from torch import Tensor

import khop
from processes.inference_ranks import CASES, CHUNK, Case, disagree, found, take_part
from support.small_folders import write_learnable_graph
from support.small_link_folders import write_shop
from support.small_typed_folders import write_typed_graph
from support.started_ranks import StartedRanks

MAKE = {"one-type": write_learnable_graph, "typed": write_typed_graph, "links": write_shop}
Runs = tuple[tuple[int, str], ...]  # numbers of ranks, and the placement of each


@pytest.fixture(
    scope="module",
    params=[
        ((2, "all"),),
        pytest.param(((2, "features"), (3, "all"), (3, "features")), marks=pytest.mark.long),
    ],
    ids=["two ranks", "two and three ranks"],
)
def runs(request: pytest.FixtureRequest) -> Runs:
    found: Runs = request.param
    return found


@pytest.fixture(scope="module")
def cases(runs: Runs) -> tuple[Case, ...]:
    """Graphs; `make test` has two of them."""
    return CASES if len(runs) > 1 else CASES[1:]


@pytest.fixture(scope="module")
def classified(cases: tuple[Case, ...]) -> list[Case]:
    """Those whose nodes are classified."""
    return [case for case in cases if case.target]


@pytest.fixture(scope="module")
def home(
    tmp_path_factory: pytest.TempPathFactory, ranks: StartedRanks, runs: Runs, cases: tuple[Case, ...]
) -> Path:
    """The graphs, cut, and what two and three ranks have found."""
    home = tmp_path_factory.mktemp("ranks")
    for case in cases:
        whole = MAKE[case.name](home / case.name)
        khop.partition_graph(whole, home / f"{case.name}-parts", case.parts, method=case.method)
    for procs, placement in runs:
        ranks.launch(take_part, procs, (str(home), placement, cases))
    return home


@pytest.fixture(scope="module")
def one(home: Path, cases: tuple[Case, ...]) -> dict[str, dict[str, Tensor]]:
    """What one process finds of all parts, by case."""
    out = home / "one"
    out.mkdir()
    return {case.name: found(case, khop.open_graph(home / f"{case.name}-parts"), out) for case in cases}


def test_every_rank_has_the_rows_and_scores_of_one_process(
    cases: tuple[Case, ...], home: Path, runs: Runs, one: dict[str, dict[str, Tensor]], tmp_path: Path
) -> None:
    for case in cases:
        of_parts, of_whole = one[case.name], found(case, khop.open_graph(home / case.name), tmp_path)
        assert of_parts.keys() == of_whole.keys()
        for name, rows in of_whole.items():
            assert rows.numel() > 0 or name == "none"
            torch.testing.assert_close(of_parts[name], rows, rtol=1e-11, atol=1e-11)
        for procs, placement in runs:
            for rank in range(procs):
                theirs = np.load(home / f"{placement}-{procs}" / f"{case.name}-{rank}.npz")
                for name, rows in of_parts.items():
                    assert np.array_equal(theirs[name], rows.numpy()), (case, placement, procs, rank, name)


def test_files_are_those_of_one_process(
    classified: list[Case], home: Path, runs: Runs, one: dict[str, dict[str, Tensor]]
) -> None:
    for case, (procs, placement) in product(classified, runs):
        out = home / f"{placement}-{procs}"
        for name in (f"{case.name}.npy", f"{case.name}.ids.npy", f"{case.name}-some.npy"):
            assert (out / name).read_bytes() == (home / "one" / name).read_bytes()
        tables = [pyarrow.parquet.read_table(at / f"{case.name}.parquet") for at in (out, home / "one")]
        assert tables[0].equals(tables[1])
        stopped = out / f"{case.name}-stopped.npy"
        assert stopped.read_bytes() == (home / "one" / f"{case.name}.npy").read_bytes()
        assert not list(out.glob("*.unfinished"))


def test_ranks_that_see_no_folder_in_common_have_a_file_each(
    classified: list[Case], home: Path, runs: Runs, one: dict[str, dict[str, Tensor]]
) -> None:
    for case, (procs, placement) in product(classified, runs):
        rows, ids = (np.load(home / "one" / f"{case.name}{ending}") for ending in (".npy", ".ids.npy"))
        places = [home / f"{placement}-{procs}-machine-{rank}" for rank in range(procs)]
        for rank, place in enumerate(places):
            names = {f"{c.name}-stopped.rank-{rank}{e}" for c in classified for e in (".npy", ".ids.npy")}
            assert {file.name for file in place.iterdir()} == names
        for whole, ending in ((rows, ".npy"), (ids, ".ids.npy")):
            of_ranks = [
                np.load(place / f"{case.name}-stopped.rank-{rank}{ending}")
                for rank, place in enumerate(places)
            ]
            assert min(map(len, of_ranks)) > 0
            assert np.array_equal(np.concatenate(of_ranks), whole)


def test_what_was_stopped_is_not_computed_again(classified: list[Case], home: Path, runs: Runs) -> None:
    for case, (procs, placement) in product(classified, runs):
        for rank in range(procs):
            told = json.loads((home / f"{placement}-{procs}" / f"{case.name}-{rank}.json").read_text())
            for seen in told:
                assert seen[0] > procs * CHUNK  # the first chunk of every rank, and another


def test_ranks_that_disagree_about_devices_or_chunks_lose_no_rows(
    tmp_path: Path, ranks: StartedRanks
) -> None:
    """Only one of two ranks has room on its device; then they are given different sizes of chunks."""
    write_learnable_graph(tmp_path / "one-type")
    ranks.launch(disagree, 2, (str(tmp_path / "one-type"),))
