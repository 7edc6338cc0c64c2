"""Rows of columns are taken when they are asked for, and once."""

from __future__ import annotations

import torch

from khop.kernels.chosen_rows import ChosenRows


def test_a_column_is_read_when_it_is_asked_for_and_once() -> None:
    read: list[str] = []

    class Columns(dict[str, torch.Tensor]):
        def __getitem__(self, name: str) -> torch.Tensor:
            read.append(name)
            return super().__getitem__(name)

    chosen = ChosenRows(Columns(time=torch.tensor([5, 6, 7]), x=torch.ones(3, 2)), torch.tensor([0, 2]))
    assert (len(chosen), list(chosen), "time" in chosen, "price" in chosen) == (2, ["time", "x"], True, False)
    assert read == []
    assert chosen["time"].tolist() == chosen["time"].tolist() == [5, 7]
    assert chosen["x"].shape == (2, 2)
    assert read == ["time", "x"]
