"""A relation is an edge type or a column of one: the same losses, scores and gradients."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch
from torch import Tensor, nn

import khop
from khop.batch import Batch
from khop.draw import NegativeMode
from khop.models.decoders import RELATION_DECODERS, DecoderKind, DistMult
from khop.models.link_predictor import LinkPredictor, SharedDecoder
from khop.training.edge_tasks import LinkLoss, LinkPrediction
from khop.training.metrics import Places
from support.knowledge import ENTITIES, FACT, RELATIONS, Triples, as_column, as_types, relation_type

TRIPLES = Triples.drawn()
ORDER = TRIPLES.all[1].argsort(stable=True)
SORTED = TRIPLES.all[:, ORDER]  # links of edge types stand one type after the other


class Rows(nn.Module):
    """A learned row per entity."""

    def __init__(self) -> None:
        super().__init__()
        random = torch.Generator().manual_seed(5)
        self.table = nn.Parameter(torch.randn(ENTITIES, 6, generator=random, dtype=torch.float64))

    def forward(self, batch: Batch) -> Mapping[str, Tensor]:
        return {"entity": self.table[batch.seed_nodes["entity"]]}


@pytest.fixture(scope="module")
def graphs(tmp_path_factory: pytest.TempPathFactory) -> tuple[khop.Graph, khop.Graph]:
    home = tmp_path_factory.mktemp("facts")
    return as_column(home / "column", TRIPLES), as_types(home / "types", TRIPLES)


def predictor(
    kind: DecoderKind, types: list[khop.EdgeType], relations: dict[khop.EdgeType, int]
) -> LinkPredictor:
    with torch.random.fork_rng():
        torch.manual_seed(2)
        return LinkPredictor.of(Rows(), types, kind, 6, relations).double()


def batches(graphs: tuple[khop.Graph, khop.Graph], mode: NegativeMode) -> tuple[Batch, Batch]:
    """All triples with the same negatives, with relations as a column and as edge types."""
    source, relation, destination = SORTED
    ends = torch.stack([source, destination])
    negatives = torch.randint(ENTITIES, (ends.shape[1], 3), generator=torch.Generator().manual_seed(1))
    of_types = {relation_type(r): relation == r for r in range(RELATIONS)}
    as_one = khop.Links({FACT: ends}, negatives={FACT: negatives}, relations={FACT: relation})
    as_many = khop.Links(
        {t: ends[:, mine] for t, mine in of_types.items()},
        negatives={t: negatives[mine] for t, mine in of_types.items()},
    )
    found = []
    for graph, links, column in zip(graphs, (as_one, as_many), ("r", None), strict=True):
        sampler = khop.LinkSampler(graph, [1], negatives=khop.GivenNegatives(mode), relation=column)
        found.append(khop.Loader(sampler, links, 1000).batch(0, 0))
    return found[0], found[1]


@pytest.mark.parametrize("mode", NegativeMode)
@pytest.mark.parametrize("loss", ["bce", "bpr", "margin", "infonce"])
@pytest.mark.parametrize("kind", list(RELATION_DECODERS))
def test_losses_and_gradients_are_equal(
    graphs: tuple[khop.Graph, khop.Graph], kind: DecoderKind, loss: LinkLoss, mode: NegativeMode
) -> None:
    if mode is NegativeMode.BINARY and loss != "bce":
        return
    found = []
    types = [relation_type(r) for r in range(RELATIONS)]
    models = predictor(kind, [FACT], {FACT: RELATIONS}), predictor(kind, types, {})
    for model, batch in zip(models, batches(graphs, mode), strict=True):
        losses = LinkPrediction(loss).losses(model(batch), batch)
        batch.global_mean(losses).backward()
        gradients = [parameter.grad for parameter in model.parameters()]
        found.append((losses.sort().values.detach(), *gradients))
        assert all(gradient is not None and gradient.abs().sum() > 0 for gradient in gradients)
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-9)


def test_joined_scores_are_those_of_each_type(graphs: tuple[khop.Graph, khop.Graph]) -> None:
    _, batch = batches(graphs, NegativeMode.TRIPLET)
    model = predictor("distmult", [relation_type(r) for r in range(RELATIONS)], {})
    scores, rows = model(batch), model.encoder(batch)["entity"]
    assert len(scores) == RELATIONS
    for edge_type, links in batch.links.items():
        decoder = model.decoder(edge_type)
        assert links.negatives is not None
        torch.testing.assert_close(
            scores[edge_type].pairs, decoder(rows[links.source], rows[links.destination])
        )
        others = decoder(rows[links.source].unsqueeze(1), rows[links.negatives])
        torch.testing.assert_close(scores[edge_type].negatives, others)


def test_both_ends_are_compared_with_the_link(graphs: tuple[khop.Graph, khop.Graph]) -> None:
    source, relation, destination = SORTED
    links = khop.Links({FACT: torch.stack([source, destination])}, relations={FACT: relation})
    negatives = khop.UniformNegatives(2, NegativeMode.TRIPLET, corrupt="both")
    sampler = khop.LinkSampler(graphs[0], [1], negatives=negatives, relation="r")
    batch = khop.Loader(sampler, links, 1000).batch(0, 0)
    model = predictor("transe", [FACT], {FACT: RELATIONS})
    scores, decoder = model(batch)[FACT], model.decoder(FACT)
    rows, of_links = model.encoder(batch)["entity"], batch.links[FACT]
    assert of_links.negatives is not None
    assert of_links.source_negatives is not None
    by = relation.unsqueeze(1)
    s, d = rows[of_links.source].unsqueeze(1), rows[of_links.destination].unsqueeze(1)
    tails = decoder(s, rows[of_links.negatives], by)  # type: ignore[call-arg]
    heads = decoder(rows[of_links.source_negatives], d, by)  # type: ignore[call-arg]
    torch.testing.assert_close(scores.negatives, torch.cat([tails, heads], dim=1))


def test_evaluation_scores_by_relation(graphs: tuple[khop.Graph, khop.Graph]) -> None:
    graph, (source, relation, destination) = graphs[0], SORTED
    torch.manual_seed(1)
    encoder = khop.models.SAGE.for_graph(graph, hidden=8, layers=1, target=["entity"], outputs=6)
    model = LinkPredictor.of(encoder, [FACT], "complex", 6, {FACT: RELATIONS})
    negatives = torch.randint(ENTITIES, (source.numel(), 5), generator=torch.Generator().manual_seed(1))
    ends = torch.stack([source, destination])
    links = khop.Links({FACT: ends}, negatives={FACT: negatives}, relations={FACT: relation})
    with torch.no_grad():
        rows = khop.node_rows(encoder, graph, graph.features, ["entity"])["entity"]
        shared = model.decoders["relations"]
        own = shared(rows[source], rows[destination], relation)
        others = shared(rows[source].unsqueeze(1), rows[negatives], relation.unsqueeze(1))
    expected = Places.of(own, others).mean_reciprocal_rank()
    exact = khop.evaluate_links(model, graph, links, metrics=["mrr"])["mrr"]
    sampled = khop.evaluate_links(model, graph, links, metrics=["mrr"], fanouts=[-1])["mrr"]
    assert exact == pytest.approx(expected, abs=1e-6)
    assert sampled == pytest.approx(expected, abs=1e-6)


def test_unfit_relations_are_errors(graphs: tuple[khop.Graph, khop.Graph]) -> None:
    batch, typed = batches(graphs, NegativeMode.TRIPLET)
    with pytest.raises(ValueError, match="relation 3, the model has 2; make it with more"):
        predictor("distmult", [FACT], {FACT: 2})(batch)
    with pytest.raises(ValueError, match=r"links of .* the model scores those of"):
        predictor("distmult", [FACT], {FACT: 4})(typed)
    with pytest.raises(ValueError, match="3 in all, the decoder's table has 2"):
        SharedDecoder(DistMult(6, 2), {FACT: 3})
    with pytest.raises(ValueError, match=r"relations of .*: the model scores links of"):
        LinkPredictor.of(Rows(), [FACT], "distmult", 6, {relation_type(1): 3})
