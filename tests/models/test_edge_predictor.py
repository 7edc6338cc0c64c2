"""An edge predictor computes outputs of links from the rows of their ends, by a head per edge type."""

from __future__ import annotations

import pytest
import torch

from khop.models.edge_predictor import EdgeHead, EdgePredictor
from support.small_links import BUYS, ON, LinkBatches, predictor


def model_of(outputs: int = 3) -> EdgePredictor:
    torch.manual_seed(2)
    encoder = predictor("dot").encoder
    return EdgePredictor.of(encoder, [BUYS, ON], 5, outputs).double()


def test_outputs_are_those_of_the_head_over_the_rows_of_both_ends() -> None:
    batch, model = LinkBatches(None).batch(), model_of()
    rows, found = model.encoder(batch), model(batch)
    assert list(found) == [BUYS, ON]
    for edge_type, outputs in found.items():
        links, head = batch.links[edge_type], model.head(edge_type)
        assert isinstance(head, EdgeHead)
        both = torch.cat([rows[edge_type[0]][links.source], rows[edge_type[2]][links.destination]], 1)
        expected = torch.relu(both @ head.hidden.weight.T + head.hidden.bias) @ head.out.weight.T
        torch.testing.assert_close(outputs, expected + head.out.bias)


def test_a_rescaled_head_gives_the_unit_of_the_label() -> None:
    head, ends = EdgeHead(4, 2).double(), torch.randn(2, 5, 4, dtype=torch.float64)
    plain = head(*ends)
    head.rescale([5.0, -1.0], [10.0, 2.0])
    expected = plain * torch.tensor([10.0, 2.0]) + torch.tensor([5.0, -1.0])
    torch.testing.assert_close(head(*ends), expected)


def test_an_edge_and_its_reverse_have_different_outputs() -> None:
    head, ends = EdgeHead(4, 2), torch.randn(2, 5, 4)
    assert not torch.allclose(head(ends[0], ends[1]), head(ends[1], ends[0]))


def test_what_the_model_does_not_predict_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"edges of .*'x'.*: the model predicts those of"):
        model_of().head("a x b")
    with pytest.raises(ValueError, match="no heads, give one per edge type"):
        EdgePredictor(torch.nn.Identity(), {})
    with pytest.raises(ValueError, match="outputs 0: must be a whole number, 1 or more"):
        EdgeHead(4, 0)
