"""A link predictor scores a batch's pairs by the rows of their ends."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from khop.draw import NegativeMode
from khop.models.decoders import Dot
from khop.models.link_predictor import LinkPredictor
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
