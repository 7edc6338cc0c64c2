"""Sampled evaluation of links gives the encoder the edge columns that it reads."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

import khop
from khop.batch import Batch
from support.small_labeled import LIKE, write_labeled_graph


class Weighed(nn.Module):
    """An encoder that adds the weights of the edges into each seed to its row."""

    num_layers = 1
    input_columns = {"item": ("x",), LIKE: ("weight",)}  # noqa: RUF012

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """Return (seeds, 4)."""
        block = batch.blocks[0].adjacencies[LIKE]
        rows = torch.repeat_interleave(torch.arange(block.num_dst), block.indptr.diff())
        sums = torch.zeros(block.num_dst).index_add(0, rows, block.columns["weight"])
        return {"item": (batch["x"][: block.num_dst] + sums.unsqueeze(1))[batch.seed_index]}


def test_an_encoder_of_edge_columns_is_evaluated(tmp_path: Path) -> None:
    split = khop.split_links(khop.open_graph(write_labeled_graph(tmp_path / "graph")), LIKE, negatives=3)
    model = khop.models.LinkPredictor(Weighed(), {LIKE: khop.models.Dot()})
    found = khop.evaluate_links(model, split.val, split.val_links, fanouts=[-1])
    again = khop.evaluate_links(
        model, split.val, split.val_links, fanouts=[-1], columns=Weighed.input_columns
    )
    assert found == again
    assert 0 < found["mrr"] < 1
