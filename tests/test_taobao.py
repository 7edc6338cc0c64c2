"""The Taobao example keeps clear of the tutorial's three defects, and reads the tutorial's data set."""

from __future__ import annotations

import re
import runpy
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.sparse import csr_array

import khop

EXAMPLES = Path(__file__).parents[1] / "examples"
START = 1511539200  # the first second that the data set keeps


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spawned processes too can import the example."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(EXAMPLES)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def aucs(output: str) -> list[list[float]]:
    """On validation and on test, of each epoch."""
    lines = [line for line in output.splitlines() if line.startswith("epoch")]
    return [[float(number) for number in re.findall(r"\d\.\d+", line)] for line in lines]


@pytest.mark.long
def test_two_ranks_learn_and_measure_what_one_does(capfd: pytest.CaptureFixture[str]) -> None:
    """The loss is the mean over all pairs of all ranks, and every rank takes part in evaluation."""
    train = import_module("taobao").train
    with torch.random.fork_rng():
        khop.launch(train, procs=1, arguments=(None, 1), device="cpu")
    alone = aucs(capfd.readouterr().out)
    assert len(alone) == 1
    assert min(alone[0]) > 0.53
    khop.launch(train, procs=2, arguments=(None, 1), device="cpu")
    assert aucs(capfd.readouterr().out) == [pytest.approx(of_epoch, abs=2e-3) for of_epoch in alone]


def test_items_go_together_by_what_training_shows_alone() -> None:
    example = runpy.run_path(str(EXAMPLES / "taobao.py"))
    edge_type, together = example["TO"], example["TOGETHER"]
    example["write_split"](Path("split"), None)
    split = khop.LinkSplit.open("split")

    def counts(of: khop.Graph, *more: torch.Tensor) -> csr_array:
        csc = of.csc(edge_type)
        ends = torch.stack([csc.indices.long(), torch.repeat_interleave(csc.indptr.diff())])
        users, items = torch.cat([ends, *more], dim=1).numpy()
        bought = csr_array((np.ones(users.size), (users, items)), (2000, 1200))
        product = csr_array(bought.T @ bought)
        product.setdiag(0)
        return csr_array(product >= 3)

    expected, leaking = counts(split.train), counts(split.test, split.test_links.edges[edge_type])
    assert 0 < expected.nnz < leaking.nnz
    for part in (split.train, split.val, split.test):
        assert part.csc(together).indptr.tolist() == expected.indptr.tolist()


# torch_geometric makes tensors of what pandas 3 gives it, which is read-only.
@pytest.mark.filterwarnings("ignore:The given NumPy array is not writable:UserWarning")
def test_the_real_data_set_is_read_where_its_files_are(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """UserBehavior.csv as torch_geometric unpacks it: lines of user, item, category, what was done, when."""
    random = np.random.default_rng(0)
    users, items = random.integers(1, 40, 900) * 17, random.integers(1, 30, 900) * 1009
    done = random.choice(["pv", "cart", "buy", "fav"], 900)
    times = START + np.arange(900)
    times[:10] = START - 1  # out of the nine days: dropped
    lines = [f"{u},{i},{i % 7},{what},{t}\n" for u, i, what, t in zip(users, items, done, times, strict=True)]
    raw = Path("data/raw/UserBehavior.csv")
    raw.parent.mkdir(parents=True)
    raw.write_text("".join(lines))
    monkeypatch.setattr("sys.argv", ["taobao.py", "--taobao", "data", "--epochs", "1", "--procs", "1"])
    with torch.random.fork_rng():
        runpy.run_path(str(EXAMPLES / "taobao.py"), run_name="__main__")
    (measured,) = aucs(capsys.readouterr().out)
    assert all(0 < auc < 1 for auc in measured)
    split = khop.LinkSplit.open("graphs/taobao-split")
    assert split.train.schema.node_types == ("user", "item")
    edge_type = ("user", "to", "item")
    assert split.test.csc(edge_type).num_edges + split.test_links.counts[edge_type] == 890
    back = split.test.csc(("item", "rev_to", "user"))
    asked = {(user, item) for user, item in split.test_links.edges[edge_type].T.tolist()}
    heard = torch.repeat_interleave(torch.arange(back.num_rows), back.indptr.diff()).tolist()
    assert asked
    assert not asked & set(zip(heard, back.indices.tolist(), strict=True))
