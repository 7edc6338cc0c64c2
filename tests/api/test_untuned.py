"""A loader says once that its batches are large and the process is not tuned, and never without a cost."""

from __future__ import annotations

import warnings

import pytest
import torch

import khop
from khop.api import untuned
from khop.features.table import FeatureTable
from khop.graph.csc_graph import csc_graph_from_edges


def loader(width: int) -> khop.Loader:
    """A loader with batches of 300 rows of `width` numbers."""
    columns = {"item": {"x": torch.zeros(300, width)}}
    ring = (torch.arange(300), torch.arange(300).roll(1))
    graph = csc_graph_from_edges({"item": 300}, {("item", "to", "item"): ring}, columns=columns)
    whole = khop.Graph(graph, FeatureTable(columns))
    return khop.Loader(khop.NeighborSampler(whole, [1]), torch.arange(300), 300, columns=["x"])


@pytest.fixture(autouse=True)
def _untuned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(untuned, "is_tuned", lambda: False)
    monkeypatch.setattr(untuned, "has_chosen_allocation", lambda: False)
    monkeypatch.setattr(untuned, "_NOTICED", [])


def test_large_batches_of_an_untuned_process_are_one_warning() -> None:
    large = loader(30_000)
    with pytest.warns(UserWarning, match=r"a batch has a column of 36 MB, .*call khop.tune_process\(\)"):
        list(large)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        list(large)


@pytest.mark.parametrize("how", ["small", "tuned", "chosen"])
def test_nothing_is_said_where_it_does_not_cost(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if how == "tuned":
        monkeypatch.setattr(untuned, "is_tuned", lambda: True)
    if how == "chosen":
        monkeypatch.setattr(untuned, "has_chosen_allocation", lambda: True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        list(loader(100 if how == "small" else 30_000))
