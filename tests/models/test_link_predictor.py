"""A link predictor scores a batch's pairs by the rows of their ends.

An edge predictor computes outputs of links from the rows of their ends, by a head per edge type.

Scores of all edge types in one tensor are the scores of each type.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from khop.draw import NegativeMode
from khop.models.decoders import Dot
from khop.models.link_predictor import (
    EdgeHead,
    EdgePredictor,
    LinkPredictor,
    LinkScores,
    ScoresByType,
    joined,
)
from support.small_graphs import one_type
from support.small_links import BUYS, ON, LinkBatches, predictor


def test_every_pair_is_decoded_from_its_ends_rows() -> None:
    batch, model = LinkBatches(NegativeMode.BINARY).batch(), predictor()
    rows, scores = model.encoder(batch), model(batch)
    assert list(scores) == [BUYS, ON]
    for edge_type in (BUYS, ON):
        links = batch.links[edge_type]
        ends = rows[edge_type[0]][links.source], rows[edge_type[2]][links.destination]
        torch.testing.assert_close(scores[edge_type].pairs, model.decoder(edge_type)(*ends))
        assert scores[edge_type].negatives is None


def test_of_triplets_every_negative_has_a_score_with_the_links_source() -> None:
    batch, model = LinkBatches(NegativeMode.TRIPLET).batch(), predictor("distmult")
    rows, scores = model.encoder(batch), model(batch)[ON]
    links = batch.links[ON]
    assert links.negatives is not None
    assert scores.negatives is not None
    assert scores.negatives.shape == (7, 3)
    expected = model.decoder(ON)(rows["tag"][links.source], rows["item"][links.negatives[:, 1]])
    torch.testing.assert_close(scores.negatives[:, 1], expected)


def test_every_parameter_has_a_gradient_where_a_type_has_no_links() -> None:
    batch, model = LinkBatches(NegativeMode.BINARY).batch(), predictor()
    none = batch.links[ON].map(lambda tensor: tensor[:0])
    batch = replace(batch, sample=replace(batch.sample, links={**batch.links, ON: none}))
    sum(scores.pairs.sum() for scores in model(batch).values()).backward()
    assert [name for name, parameter in model.named_parameters() if parameter.grad is None] == []


def test_what_cannot_be_scored_is_named() -> None:
    encoder = nn.Identity()
    with pytest.raises(ValueError, match="link predictor: no decoders"):
        LinkPredictor(encoder, {})
    model = LinkPredictor(encoder, {BUYS: Dot()})
    with pytest.raises(
        ValueError, match=r"links of \('tag', 'on', 'item'\): the model scores those of \[\('user'"
    ):
        model.decoder(ON)
    with pytest.raises(ValueError, match=r"the batch has no links: give the loader a khop\.LinkSampler"):
        model(one_type().batch(torch.arange(3), [2], "node"))


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


A, B = ("n", "a", "n"), ("n", "b", "n")


def test_joined_scores_are_split_by_type_and_joined_again() -> None:
    pairs, negatives = torch.arange(5.0), torch.arange(10.0).view(5, 2)
    scores = ScoresByType(LinkScores(pairs, negatives), {A: 2, B: 3})
    assert list(scores) == [A, B]
    assert len(scores) == 2
    assert scores[B].pairs.tolist() == [2, 3, 4]
    assert scores[A].negatives is not None
    assert scores[A].negatives.tolist() == [[0, 1], [2, 3]]
    assert joined(scores) is scores.joined
    again = joined(dict(scores))
    assert again is not None
    assert again.negatives is not None
    assert torch.equal(again.pairs, pairs)
    assert torch.equal(again.negatives, negatives)


def test_types_with_different_negatives_are_not_joined() -> None:
    assert joined({A: LinkScores(torch.ones(2)), B: LinkScores(torch.ones(2), torch.ones(2, 3))}) is None
    without = joined({A: LinkScores(torch.ones(2)), B: LinkScores(torch.zeros(1))})
    assert without is not None
    assert without.negatives is None
    assert without.pairs.tolist() == [1, 1, 0]
