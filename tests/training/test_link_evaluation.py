"""Held-out links are scored from the rows of all nodes: what batches would give, in any chunks."""

from __future__ import annotations

import pytest
import torch

from khop.draw import NegativeMode, UniformNegatives
from khop.evaluating import evaluate_links
from khop.models.decoders import DecoderKind
from khop.sampling.link_seeds import Links
from khop.training import link_evaluation
from khop.training.link_evaluation import link_scores, node_rows, with_negatives
from khop.training.link_prediction import LinkPrediction
from small_links import BUYS, ON, LinkBatches, graph, links, predictor

TYPES = ("user", "item", "tag", "item")


@pytest.mark.parametrize("decoder", ["dot", "mlp", "distmult"])
@pytest.mark.parametrize("chunk_numbers", [1, 100, 1 << 22])
def test_scores_are_those_of_batches_over_all_neighbours(
    decoder: DecoderKind, chunk_numbers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link_evaluation, "_CHUNK_NUMBERS", chunk_numbers)
    model, whole = predictor(decoder), graph()
    rows = node_rows(model.encoder, whole, whole.features, TYPES, chunk_size=11)
    found = link_scores(model, rows, links(3))
    batch = LinkBatches(NegativeMode.TRIPLET).batch()
    model.eval()
    expected = model(batch)
    for edge_type in (BUYS, ON):
        position = batch.links[edge_type].positions  # the batch is shuffled
        order = torch.argsort(torch.argsort(position))
        assert order.numel() == found[edge_type][0].numel()
        ours, theirs = found[edge_type][0].sort().values, expected[edge_type].pairs.sort().values
        torch.testing.assert_close(ours, theirs.detach())
        ours, theirs = found[edge_type][1].flatten().sort().values, expected[edge_type].negatives.flatten()
        torch.testing.assert_close(ours, theirs.detach().sort().values)


def test_each_link_keeps_its_own_negatives() -> None:
    model, whole = predictor("dot"), graph()
    rows = node_rows(model.encoder, whole, whole.features, TYPES)
    given = links(3)
    scores, of_negatives = link_scores(model, rows, given)[BUYS]
    source, destination = given.edges[BUYS][:, 5]
    assert given.negatives is not None
    negative = given.negatives[BUYS][5, 2]
    torch.testing.assert_close(scores[5], rows["user"][source] @ rows["item"][destination])
    torch.testing.assert_close(of_negatives[5, 2], rows["user"][source] @ rows["item"][negative])


def test_links_without_negatives_are_refused() -> None:
    with pytest.raises(ValueError, match="links without negatives cannot be evaluated"):
        link_scores(predictor(), {}, links())


def test_negatives_are_the_same_each_time_and_no_edges_where_they_are_exact() -> None:
    whole, given = graph(), links()
    drawn = [with_negatives(whole, given, UniformNegatives(20, exact=True), seed) for seed in (1, 1, 2)]
    first, again, other = (found.negatives for found in drawn)
    assert first is not None
    assert again is not None
    assert other is not None
    for edge_type in (BUYS, ON):
        assert first[edge_type].shape == (given.edges[edge_type].shape[1], 20)
        assert torch.equal(first[edge_type], again[edge_type])
        assert not torch.equal(first[edge_type], other[edge_type])
        csc = whole.csc(edge_type)
        destinations = torch.repeat_interleave(csc.indptr.diff())
        edges = set(zip(csc.indices.tolist(), destinations.tolist(), strict=True))
        sources = given.edges[edge_type][0]
        pairs = {(int(s), d) for s, of in zip(sources, first[edge_type].tolist(), strict=True) for d in of}
        assert not pairs & edges
    assert drawn[0].edges is given.edges


def test_a_model_is_measured_by_several_metrics_from_one_pass() -> None:
    model, whole, given = predictor("dot"), graph(), links(3)
    rows = node_rows(model.encoder, whole, whole.features, TYPES)
    scores = link_scores(model, rows, given)
    found = evaluate_links(model, whole, given, metrics=("hits@10", "average-precision"))
    assert list(found) == ["hits@10", "average-precision"]
    for metric, value in found.items():
        task = LinkPrediction(metric=metric)  # type: ignore[arg-type]
        expected = [task.score(*of_type) for of_type in scores.values()]
        assert value == pytest.approx(sum(expected) / 2)


def test_an_edge_type_without_links_is_named() -> None:
    none = torch.empty(2, 0, dtype=torch.int64)
    given = Links({BUYS: none}, negatives={BUYS: torch.empty(0, 3, dtype=torch.int64)})
    with pytest.raises(ValueError, match=r"links of \('user', 'buys', 'item'\): there are none to evaluate"):
        evaluate_links(predictor(), graph(), given)


def test_a_model_that_scores_no_pairs_is_refused() -> None:
    with pytest.raises(ValueError, match=r"evaluate_links of a SAGE: it takes a khop\.models\.LinkPredictor"):
        evaluate_links(predictor().encoder, graph(), links(3))
