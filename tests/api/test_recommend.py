"""Recommendations are the best of all candidates by the decoder over exact rows, or the most popular ones."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import khop
from khop.api.recommend import Candidates
from khop.graph.build import write_graph
from khop.graph.tables import EdgeTable, NodeTable
from khop.models import SAGE, LinkPredictor
from khop.models.decoders import DecoderKind

BUYS, BACK, LIKE = ("user", "buys", "item"), ("item", "bought-by", "user"), ("item", "like", "item")
COLD, BUYER = 19, 1


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> khop.Graph:
    """Users 0 to 18 buy items; user 19 is cold; nobody buys item 11."""
    generator = torch.Generator().manual_seed(4)
    users, items = (
        torch.randint(19, (60,), generator=generator),
        torch.randint(11, (60,), generator=generator),
    )
    nodes = {
        "user": NodeTable(columns={"x": torch.randn(20, 3, generator=generator)}),
        "item": NodeTable(columns={"x": torch.randn(12, 3, generator=generator)}),
    }
    edges = {
        BUYS: EdgeTable(users, items),
        BACK: EdgeTable(items, users, reverse_of=BUYS),
        LIKE: EdgeTable(torch.tensor([0, 1, 5]), torch.tensor([1, 2, 1])),
    }
    return khop.open_graph(write_graph(tmp_path_factory.mktemp("graphs") / "shop", nodes, edges))


def predictor(graph: khop.Graph, decoder: DecoderKind = "mlp") -> LinkPredictor:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        encoder = SAGE.for_graph(graph, hidden=8, layers=2, target=["user", "item"], outputs=6)
        return LinkPredictor.of(encoder, [BUYS, LIKE], decoder, 6)


@pytest.mark.core(1)
@pytest.mark.parametrize("candidates", ["unseen", "all"])
@pytest.mark.parametrize("decoder", ["dot", "mlp"])
def test_they_are_a_full_sort_of_all_candidates(
    graph: khop.Graph, candidates: Candidates, decoder: DecoderKind, tmp_path: Path
) -> None:
    model = predictor(graph, decoder)
    found = khop.recommend(model, graph, BUYS, k=5, candidates=candidates, work_folder=tmp_path)
    assert not list(tmp_path.iterdir())
    rows = khop.node_rows(model.encoder, graph, graph.features, ["user", "item"])
    with torch.no_grad():
        scores = model.decoder(BUYS).grid(rows["user"], rows["item"]).double()
    csc = graph.csc(BUYS)
    if candidates == "unseen":
        scores[csc.indices.long(), csc.destinations()] = -torch.inf
    for user in csc.indices.unique().tolist():
        wanted = scores[user].sort(descending=True, stable=True)
        count = min(5, int(wanted.values.isfinite().sum()))
        assert found.destinations[user, :count].tolist() == wanted.indices[:count].tolist()
        assert found.scores[user, :count].tolist() == pytest.approx(wanted.values[:count].tolist(), abs=1e-5)
    cold = [user for user in range(20) if not (csc.indices == user).any()]
    assert found.cold.nonzero().flatten().tolist() == cold
    assert bool(found.cold[COLD])


def test_a_cold_user_gets_the_most_popular_items(graph: khop.Graph) -> None:
    found = khop.recommend(predictor(graph), graph, "user buys item", torch.tensor([COLD, 0]), k=12)
    degrees = graph.csc(BUYS).degrees()
    wanted = degrees.sort(descending=True, stable=True)
    assert found.destinations[0].tolist() == wanted.indices.tolist()
    assert found.scores[0].tolist() == wanted.values.tolist()
    assert found.cold.tolist() == [True, False]


def test_fewer_candidates_than_k_leave_places_empty(graph: khop.Graph) -> None:
    found = khop.recommend(predictor(graph), graph, BUYS, torch.tensor([BUYER]), k=15)
    csc = graph.csc(BUYS)
    bought = csc.destinations()[csc.indices == BUYER].unique().numel()
    assert bought > 0
    assert int((found.destinations[0] >= 0).sum()) == 12 - bought
    assert found.destinations[0, 12 - bought :].tolist() == [-1] * (3 + bought)


def test_a_node_is_not_recommended_to_itself(graph: khop.Graph) -> None:
    found = khop.recommend(predictor(graph), graph, LIKE, k=12, candidates="all")
    for item, row in enumerate(found.destinations.tolist()):
        assert sorted(row) == [-1, *(other for other in range(12) if other != item)]


def test_some_sources_get_the_same_as_among_all(graph: khop.Graph) -> None:
    model, some = predictor(graph), torch.tensor([7, 2])
    all_of_them, found = (khop.recommend(model, graph, BUYS, sources, k=4) for sources in (None, some))
    assert torch.equal(found.destinations, all_of_them.destinations[some])


@pytest.mark.parametrize(
    ("words", "sources", "k"),
    [
        ("there is no node 20; ids go from 0 to 19", torch.tensor([20]), 3),
        ("some are given twice", torch.tensor([1, 1]), 3),
        ("sources of 'user'", torch.tensor([0.5]), 3),
        ("k 0: must be a whole number, 1 or more", None, 0),
    ],
)
def test_bad_values_are_refused(graph: khop.Graph, words: str, sources: torch.Tensor | None, k: int) -> None:
    with pytest.raises(ValueError, match=words):
        khop.recommend(predictor(graph), graph, BUYS, sources, k=k)


@pytest.mark.parametrize("counts", [(0, 5), (5, 0)])
def test_a_type_without_nodes_is_named(tmp_path: Path, counts: tuple[int, int]) -> None:
    nodes = {t: NodeTable(columns={"x": torch.randn(n, 3)}) for t, n in zip(BUYS[::2], counts, strict=True)}
    edges = {BUYS: EdgeTable(torch.empty(0).long(), torch.empty(0).long())}
    graph = khop.open_graph(write_graph(tmp_path / "g", nodes, edges))
    encoder = SAGE.for_graph(graph, hidden=8, target=["user", "item"], outputs=6)
    model = LinkPredictor.of(encoder, [BUYS], "dot", 6)
    with pytest.raises(ValueError, match=f"recommend: there are no nodes of '{BUYS[2 * counts.index(0)]}'"):
        khop.recommend(model, graph, BUYS)
