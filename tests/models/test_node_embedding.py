"""Embeddings train as torch's embeddings with sparse gradients do, and keep their state like parameters."""

from __future__ import annotations

import gc
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import khop
from khop.batch import Batch
from khop.draw import NegativeMode
from khop.models.decoders import RELATION_DECODERS, DecoderKind, DistMult
from khop.models.link_predictor import LinkPredictor, SharedDecoder
from khop.models.node_embedding import NodeEmbedding, first_rows, summed
from khop.training.edge_tasks import LinkPrediction
from khop.training.metrics import Places
from support.knowledge import ENTITIES, FACT, RELATIONS, Triples, as_column, as_types, relation_type
from support.small_rated import ITEM, USER, write_rated

IDS = st.lists(st.integers(0, 5), max_size=12)


@given(st.lists(st.tuples(IDS, IDS), min_size=1, max_size=5))
def test_rows_take_the_course_of_torchs_sparse_embedding(steps: list[tuple[list[int], list[int]]]) -> None:
    """Two lookups per step, with repeats and without any; what is not read stays."""
    rows = NodeEmbedding(6, 3).double()
    embedding = nn.Embedding(6, 3, sparse=True, dtype=torch.float64)
    embedding.load_state_dict(rows.state_dict())
    ours, theirs = khop.RowAdam(rows, lr=0.1), torch.optim.SparseAdam(embedding.parameters(), lr=0.1)
    for first, second in steps:
        for table, optimizer in ((rows, ours), (embedding, theirs)):
            optimizer.zero_grad()
            looked_up = [table(torch.tensor(ids, dtype=torch.int64)) for ids in (first, second)]
            (looked_up[0].tanh().sum() + looked_up[1].square().sum()).backward()
            optimizer.step()
    torch.testing.assert_close(rows.weight.data, embedding.weight.data, rtol=1e-12, atol=1e-14)


def test_gradients_of_two_backward_passes_add_up_and_zero_grad_drops_them() -> None:
    rows = NodeEmbedding(4, 2)
    optimizer = khop.RowAdam(rows)
    rows(torch.tensor([1, 1, 3])).sum().backward()
    rows(torch.tensor([3])).sum().backward()
    optimizer.exchange()
    assert rows.weight.grad.to_dense().tolist() == [[0, 0], [2, 2], [0, 0], [2, 2]]
    rows(torch.tensor([0])).sum().backward()
    optimizer.zero_grad()
    optimizer.exchange()
    assert rows.weight.grad.to_dense().count_nonzero() == 0


def test_a_lookup_without_gradients_leaves_nothing_behind() -> None:
    rows = NodeEmbedding(4, 2)
    with torch.no_grad():
        assert not rows(torch.tensor([1])).requires_grad
    looked_up = rows(torch.tensor([1, 2]))
    looked_up.sum()
    del looked_up
    gc.collect()
    ids, gradients = rows.take_gradients()
    assert (ids.numel(), gradients.shape) == (0, (0, 2))


def test_a_rank_draws_its_rows_as_if_it_drew_all() -> None:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        whole = first_rows(40_000, 3, 0, 40_000)
        after = torch.rand(1)
        for first, last in ((0, 10), (16_000, 33_000), (39_999, 40_000), (5, 5)):
            torch.manual_seed(1)
            assert torch.equal(first_rows(40_000, 3, first, last), whole[first:last])
            assert torch.equal(torch.rand(1), after)
        numbers = torch.randperm(40_000)
        torch.manual_seed(1)
        assert torch.equal(first_rows(40_000, 3, 16_000, 33_000, numbers), whole[numbers[16_000:33_000]])


@given(st.lists(st.integers(0, 4), max_size=20))
def test_sums_are_of_each_id_in_order(ids: list[int]) -> None:
    values = torch.arange(len(ids), dtype=torch.float64).unsqueeze(1)
    once, sums = summed(torch.tensor(ids, dtype=torch.int64), values)
    assert once.tolist() == sorted(set(ids))
    expected = [
        sum(float(place) for place, other in enumerate(ids) if other == one) for one in sorted(set(ids))
    ]
    assert sums.flatten().tolist() == expected


def test_the_rest_of_a_model_does_not_see_them() -> None:
    """Adam of all parameters changes no row, and the state dict has them whole."""
    rows = NodeEmbedding(4, 2)
    model = nn.Sequential(rows, nn.Linear(2, 1))
    before = rows.weight.clone()
    adam = torch.optim.Adam(model.parameters(), lr=0.1, weight_decay=0.1)
    model(torch.tensor([0, 1])).sum().backward()
    adam.step()
    assert torch.equal(rows.weight, before)
    assert model.state_dict()["0.weight"].shape == (4, 2)
    with khop.models.gathered(model):
        assert torch.equal(model.state_dict()["0.weight"], before)
    khop.RowAdam(model, lr=0.1).step()
    assert not torch.equal(rows.weight[:2], before[:2])
    assert torch.equal(rows.weight[2:], before[2:])


@pytest.mark.parametrize(
    ("count", "width", "kind", "sentence"),
    [
        (-1, 2, "sparse", r"embeddings \(-1, 2\): the count must be at least 0, the width at least 1"),
        (3, 0, "sparse", r"embeddings \(3, 0\)"),
        (3, 2, "dense", "embedding update 'dense': must be 'sparse' or 'sharded'"),
    ],
)
def test_a_table_that_cannot_be_is_refused(count: int, width: int, kind: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        NodeEmbedding(count, width, kind)


def test_there_have_to_be_rows_to_train() -> None:
    with pytest.raises(ValueError, match=r"has no khop\.models\.NodeEmbedding: add one"):
        khop.RowAdam(nn.Linear(2, 2))


def test_a_model_of_a_graph_has_them_where_a_type_has_no_columns(tmp_path: Path) -> None:
    graph = khop.open_graph(write_rated(tmp_path / "rated"))
    for kind in ("dense", "sparse", "sharded"):
        model = khop.models.SAGE.for_graph(graph, hidden=4, embedding=3, embedding_update=kind)
        tables = [m for m in model.modules() if isinstance(m, NodeEmbedding)]
        assert len(tables) == (0 if kind == "dense" else 2)
        assert model.state_dict()[f"encoder.tables.node:{USER}.weight"].shape == (300, 3)
    with pytest.raises(ValueError, match="embedding_update 'spares': must be one of dense, sparse, sharded"):
        khop.models.RGCN.for_graph(graph, target=ITEM, embedding=3, embedding_update="spares")


# A relation is an edge type or a column of one: the same losses, scores and gradients.


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


@pytest.mark.core(2)
@pytest.mark.parametrize("mode", NegativeMode)
@pytest.mark.parametrize("loss", ["bce", "bpr", "margin", "infonce"])
@pytest.mark.parametrize("kind", list(RELATION_DECODERS))
def test_losses_and_gradients_are_equal(
    graphs: tuple[khop.Graph, khop.Graph], kind: DecoderKind, loss: str, mode: NegativeMode
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
    with pytest.raises(ValueError, match="relation 3, but the model has 2; make it with more"):
        predictor("distmult", [FACT], {FACT: 2})(batch)
    with pytest.raises(ValueError, match=r"links of .* the model scores those of"):
        predictor("distmult", [FACT], {FACT: 4})(typed)
    with pytest.raises(ValueError, match="3 in total, but the decoder's table has 2"):
        SharedDecoder(DistMult(6, 2), {FACT: 3})
    with pytest.raises(ValueError, match=r"relations of .*: not an edge type of the model, which scores"):
        LinkPredictor.of(Rows(), [FACT], "distmult", 6, {relation_type(1): 3})
