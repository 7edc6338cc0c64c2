"""Every argument of the installed torch_geometric is taken, and docs/pyg.md says what becomes of it."""

from __future__ import annotations

import inspect
import re
import subprocess
import warnings
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader
from torch_geometric import loader as theirs
from torch_geometric.data import Data

from khop import pyg
from khop.pyg import LinkNeighborLoader, NeighborLoader
from pyg.pyg_cases import plain
from support.commands import PROGRAM

PAGE = Path(__file__).parents[2] / "docs" / "pyg-arguments.md"
ROW = re.compile(r"^\| (`.*`) \| (.*) \| (.*) \|$", re.MULTILINE)
VERDICT = re.compile(r"same|better|not applicable|batches always|only in khop")
NAMES = ["NeighborLoader", "LinkNeighborLoader"]


def arguments(function: object) -> list[str]:
    parameters = inspect.signature(function).parameters.values()  # type: ignore[arg-type]
    return [p.name for p in parameters if p.name != "self" and p.kind is not p.VAR_KEYWORD]


def table() -> dict[str, str]:
    rows = ROW.findall(PAGE.read_text())
    return {name: verdict for names, _, verdict in rows for name in re.findall(r"`(\w+)`", names)}


OURS_ALONE = {"NeighborLoader": ["time_window"], "LinkNeighborLoader": ["exclude", "time_window"]}


@pytest.mark.parametrize("name", NAMES)
def test_the_signature_is_theirs_and_a_few_names_more(name: str) -> None:
    """The same names in the same order with the same defaults; what is new is None and given by name."""
    ours, expected = (inspect.signature(getattr(package, name)).parameters for package in (pyg, theirs))
    own = [p for p in ours.values() if p.kind is p.KEYWORD_ONLY]
    assert [p.name for p in own] == OURS_ALONE[name]
    assert {p.default for p in own} == {None}
    shared = [(p.name, p.default) for p in ours.values() if p.name not in OURS_ALONE[name]]
    assert shared == [(p.name, p.default) for p in expected.values()]


@pytest.mark.parametrize(
    "base",
    [theirs.NeighborLoader, theirs.LinkNeighborLoader, theirs.NodeLoader, theirs.LinkLoader, DataLoader],
)
def test_the_page_lists_every_argument(base: type) -> None:
    """Those of the loaders, of the classes that take their `**kwargs`, and of torch's own loader."""
    assert set(arguments(base)) - set(table()) == set()


def test_the_page_lists_nothing_else_and_judges_every_one() -> None:
    bases = (
        theirs.NeighborLoader,
        theirs.LinkNeighborLoader,
        theirs.NodeLoader,
        theirs.LinkLoader,
        DataLoader,
    )
    known = {argument for base in bases for argument in arguments(base)}
    own = {argument for of_loader in OURS_ALONE.values() for argument in of_loader}
    assert set(table()) - known == own
    assert all(VERDICT.match(verdict) for verdict in table().values())


@pytest.mark.parametrize("name", NAMES)
def test_a_loader_is_one_of_theirs(name: str) -> None:
    assert issubclass(getattr(pyg, name), getattr(theirs, name))


def test_without_torch_geometric_the_way_out_is_named() -> None:
    program = """
import sys
sys.modules["torch_geometric"] = None
import khop.pyg
try:
    khop.pyg.NeighborLoader
except ImportError as error:
    print(error)
"""
    run = [*PROGRAM, program]
    finished = subprocess.run(run, capture_output=True, text=True, timeout=120)
    assert finished.stdout == "khop.pyg.NeighborLoader needs torch_geometric: pip install torch_geometric\n"


# A time window, int32 edges, and settings of processes where workers are threads.


@pytest.mark.parametrize("workers", [0, 2])
def test_a_window_leaves_edges_at_most_so_old(workers: int) -> None:
    data = plain()
    data.time = torch.arange(60)
    seeds, until = torch.arange(19), torch.full((19,), 40)
    loader = NeighborLoader(
        data, [-1], seeds, until, time_attr="time", time_window=(10, -2), batch_size=19, num_workers=workers
    )
    (batch,) = loader
    assert sorted(batch.time.tolist()) == list(range(30, 39))
    links = LinkNeighborLoader(
        data, [-1], data.edge_index[:, 40:44], None, torch.full((4,), 40), time_attr="time",
        time_window=(10, 0), batch_size=4,
    )  # fmt: skip
    assert all(30 <= time <= 40 for batch in links for time in batch.time.tolist())
    with pytest.raises(ValueError, match=r"time_window .*: has no effect without times; give time_attr"):
        NeighborLoader(data, [2], time_window=(10, 0))


@pytest.mark.parametrize("subgraph_type", ["directional", "bidirectional", "induced"])
def test_int32_edges_stay_int32(subgraph_type: str) -> None:
    data = plain()
    wide = next(iter(NeighborLoader(data, [-1, -1], SEEDS, subgraph_type=subgraph_type, batch_size=3)))
    data.edge_index = data.edge_index.int()
    batch = next(iter(NeighborLoader(data, [-1, -1], SEEDS, subgraph_type=subgraph_type, batch_size=3)))
    assert batch.edge_index.dtype == torch.int32
    assert torch.equal(batch.edge_index.long(), wide.edge_index)
    assert batch.n_id.dtype == torch.int64


SEEDS = torch.tensor([3, 8, 1])


def test_many_threads_are_no_worker_processes() -> None:
    data = Data(edge_index=torch.tensor([[0], [1]]), num_nodes=2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(list(NeighborLoader(data, [1], num_workers=4096))) == 2


@pytest.mark.parametrize("workers", [0, 2])
def test_how_processes_start_has_no_effect_and_a_warning_says_so(workers: int) -> None:
    with pytest.warns(
        UserWarning, match="multiprocessing_context 'spawn': has no effect, because workers are threads"
    ) as told:
        loader = NeighborLoader(plain(), [2], SEEDS, num_workers=workers, multiprocessing_context="spawn")
    assert told[0].filename == __file__
    assert len(list(loader)) == 3
