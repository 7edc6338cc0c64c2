"""Hard negatives are the best destinations by exact scores, without known links, equal ones by id."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import khop
from khop.draw import CandidateScore
from support.shop_links import BUYS, shop

PAIRS = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 6)), max_size=20)


def by_hand(
    sources: Sequence[Sequence[int]],
    destinations: Sequence[Sequence[int]],
    known: set[tuple[int, int]],
    keep: int,
    score: CandidateScore,
) -> list[list[int]]:
    terms = {"dot": lambda a, b: -a * b, "l1": lambda a, b: abs(a - b), "l2": lambda a, b: (a - b) ** 2}
    found = []
    for number, source in enumerate(sources):
        scored = [
            (sum(terms[score](a, b) for a, b in zip(source, row, strict=True)), i)
            for i, row in enumerate(destinations)
        ]
        best = [i for _, i in sorted(scored) if (number, i) not in known][:keep]
        found.append([best[i % len(best)] for i in range(keep)])
    return found


@given(
    seed=st.integers(0, 99),
    pairs=PAIRS,
    keep=st.integers(1, 7),
    renumbered=st.booleans(),
    score=st.sampled_from(["dot", "l1", "l2"]),
)
def test_they_are_those_of_a_sort_by_hand(
    seed: int, pairs: list[tuple[int, int]], keep: int, renumbered: bool, score: CandidateScore
) -> None:
    """Small whole numbers, so that many scores are equal."""
    generator = torch.Generator().manual_seed(seed)
    known = {(a, b) for a, b in pairs if b != 6}  # destination 6 is left for every source
    rows, columns = (torch.randint(-1, 2, (n, 2), generator=generator) for n in (6, 7))
    expected = torch.tensor(by_hand(rows.tolist(), columns.tolist(), known, keep, score))
    edges = torch.tensor(sorted(known), dtype=torch.int64).view(-1, 2).T
    edges = edges[:, torch.randperm(edges.shape[1], generator=generator)]
    originals = torch.randperm(7, generator=generator) if renumbered else torch.arange(7)
    here = originals.argsort()  # of an original id, its id in the renumbered graph
    found = khop.hard_negatives(
        rows / 64,
        columns[originals] / 64,
        keep,
        known=torch.stack([edges[0], here[edges[1]]]),
        original_ids=originals if renumbered else None,
        score=score,
    )
    assert torch.equal(originals[found], expected)


def test_noise_below_the_grid_changes_nothing_and_chunks_neither(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(1)
    rows, columns = ((torch.randint(-50, 50, (n, 8), generator=generator) / 64).double() for n in (20, 30))
    whole = khop.hard_negatives(rows, columns, 5)
    noisy = khop.hard_negatives(rows + 1e-9, columns - 1e-9, 5)
    monkeypatch.setattr("khop.sampling.links.link_negatives._SCORES_AT_ONCE", 90)
    assert torch.equal(noisy, whole)
    assert torch.equal(khop.hard_negatives(rows, columns, 5), whole)


def test_a_table_changed_between_epochs_gives_the_negatives_of_the_next() -> None:
    table = torch.zeros(8, 2, dtype=torch.int64)
    both = khop.MixedNegatives((khop.TableNegatives(table), khop.UniformNegatives(1)))
    edges = torch.tensor([[0, 3, 7], [1, 2, 5]])
    loader = khop.Loader(khop.LinkSampler(shop(), [1], negatives=both), khop.Links({BUYS: edges}), 3)
    for epoch in range(2):
        batch = loader.batch(epoch, 0)
        rows = batch.links[BUYS]
        nodes = batch.sample.nodes["item"][batch.sample.seed_index["item"][rows.destination]]
        assert torch.equal(nodes[3:].view(3, 3)[:, :2], table[edges[0]])
        table.copy_(torch.arange(16).view(8, 2) % 6)


def test_the_table_is_in_the_checkpoint_of_a_model() -> None:
    model = torch.nn.Linear(1, 1)
    table = torch.arange(6).view(3, 2)
    model.register_buffer("hard_negatives", table)
    saved = {name: value.clone() for name, value in model.state_dict().items()}
    table.zero_()
    model.load_state_dict(saved)  # in place: a sampler with this table has it again
    assert table.tolist() == [[0, 1], [2, 3], [4, 5]]


def test_a_table_as_an_array_is_shared() -> None:
    array = np.array([[0, 1], [2, 3]])
    for one in (array, {BUYS: array}):
        table = khop.TableNegatives(one).table_of(BUYS)
        array[0, 0] = 5  # the next epoch sees it
        assert table.tolist() == [[5, 1], [2, 3]]
        array[0, 0] = 0


@pytest.mark.parametrize(
    "table",
    [
        [[0, 1], [2, 3]],
        ((0, 1), np.array([2, 3])),
        np.array([[0, 1], [2, 3]], np.int32),
        np.array([[0, 9, 1], [2, 9, 3]])[:, ::2],
        np.frombuffer(np.array([[0, 1], [2, 3]]).tobytes(), np.int64).reshape(2, 2),  # not writable
        pd.DataFrame({"a": [0, 2], "b": [1, 3]}),
        pd.Series([[0, 1], [2, 3]]),
    ],
    ids=["lists", "rows", "int32", "strided", "read-only", "frame", "series"],
)
def test_a_table_of_any_library(table: object) -> None:
    found = khop.TableNegatives({BUYS: table}).table_of(BUYS)  # type: ignore[dict-item]
    assert found.dtype == torch.int64
    assert found.tolist() == [[0, 1], [2, 3]]


@pytest.mark.parametrize(
    "table", [[[0, 1], [2]], [["a"]], pd.Series([0, 1]), [[0.5]], [0, 1], np.zeros((2, 2, 2), int)]
)
def test_other_tables_are_refused(table: object) -> None:
    with pytest.raises(ValueError, match=r"table .*: must be int64 \(sources, k\)"):
        khop.TableNegatives(table)  # type: ignore[arg-type]


def test_bad_input_is_named() -> None:
    rows = torch.rand(3, 2)
    with pytest.raises(ValueError, match="source 1: all destinations are known"):
        khop.hard_negatives(rows, rows, 1, known=torch.tensor([[1, 1, 1], [0, 1, 2]]))
    with pytest.raises(ValueError, match="values reach nan"):
        khop.hard_negatives(rows * torch.nan, rows, 1)
    negatives = khop.TableNegatives(torch.zeros(5, 1, dtype=torch.int64))
    sampler = khop.LinkSampler(shop(), [1], negatives=negatives)
    loader = khop.Loader(sampler, khop.Links({BUYS: torch.zeros(2, 1, dtype=torch.int64)}), 1)
    with pytest.raises(ValueError, match="5 rows for 8 'user' nodes"):
        loader.batch(0, 0)
    of_another = khop.TableNegatives({"item back user": torch.zeros(5, 1, dtype=torch.int64)})
    sampler = khop.LinkSampler(shop(), [1], negatives=of_another)
    loader = khop.Loader(sampler, khop.Links({BUYS: torch.zeros(2, 1, dtype=torch.int64)}), 1)
    with pytest.raises(ValueError, match="\\('user', 'buys', 'item'\\) has links, but no table"):
        loader.batch(0, 0)
