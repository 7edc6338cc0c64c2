"""One call scores a model on a split: exactly where it exposes its layers, on samples in any case."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import khop
import khop.models
from khop import (
    Batch,
    EdgeTable,
    Expansion,
    Graph,
    Links,
    LinkSampler,
    Loader,
    NeighborSampler,
    NodeClassification,
    NodeTable,
    Temporal,
    evaluate,
    evaluate_links,
    layerwise_inference,
    open_graph,
    write_graph,
)
from khop.kernels.segment import segment_mean
from khop.models import SAGE, Dot, LinkPredictor

LIKE = ("item", "like", "item")


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Graph:
    generator = torch.Generator().manual_seed(2)
    users = NodeTable(20, splits={"train": torch.arange(5)})
    items = NodeTable(
        columns={"x": torch.randn(30, 4, generator=generator), "y": torch.arange(30) % 3},
        splits={"train": torch.arange(10), "val": torch.arange(10, 30)},
        num_classes={"y": 3},
    )
    ends = torch.randint(20, (90,), generator=generator), torch.randint(30, (90,), generator=generator)
    edges = {("user", "buys", "item"): EdgeTable(*ends), ("item", "of", "user"): EdgeTable(ends[1], ends[0])}
    path: Path = tmp_path_factory.mktemp("graphs") / "shop"
    return open_graph(write_graph(path, {"user": users, "item": items}, edges))


def test_the_exact_score_is_that_of_exact_inference(graph: Graph) -> None:
    model = SAGE.for_graph(graph, hidden=8, dropout=0.5, embedding=0)
    seen: list[tuple[int, int]] = []
    score = evaluate(model, graph, split="val", progress=lambda *at: seen.append(at))
    outputs = layerwise_inference(model, graph, graph.features, "item")
    expected = (outputs.argmax(dim=1) == torch.arange(30) % 3)[10:].double().mean()
    assert score == pytest.approx(float(expected))
    assert seen[-1] == (20 + 30 + 20, 20 + 30 + 20)


def test_samples_of_all_neighbors_give_the_exact_score_and_others_repeat(graph: Graph) -> None:
    model = SAGE.for_graph(graph, hidden=8, embedding=0)
    exact = evaluate(model, graph, split="val")
    assert evaluate(model, graph, split="val", fanouts=[-1, -1]) == exact
    sampled = [evaluate(model, graph, split="val", fanouts=[1, 1]) for _ in range(2)]
    assert sampled[0] == sampled[1]


@pytest.mark.core(1)
@pytest.mark.parametrize("name", ["GCN", "GIN", "LightGCN"])
def test_a_model_that_needs_a_rule_is_computed_by_it(graph: Graph, name: str, tmp_path: Path) -> None:
    """As a run that names no rule: an explicit one that does not fit stays an error."""
    made = partial(getattr(khop.models, name).for_graph, graph, hidden=8, layers=2, embedding=8)
    model = made()
    loader = Loader(
        NeighborSampler(graph, [-1, -1], rule=model.rule), {"item": torch.arange(10)}, 10, columns=["x"]
    )
    for fanouts in (None, [-1, -1]):
        expected = evaluate(model, graph, split="val", fanouts=fanouts, loader=loader)
        assert evaluate(model, graph, split="val", fanouts=fanouts) == expected
    rows = np.load(
        khop.infer(model, graph, tmp_path / "rows.npy", node_types="item", values="outputs")["item"]
    )
    assert (
        rows.tolist() == layerwise_inference(model, graph, graph.features, "item", rule=model.rule).tolist()
    )
    encoder = made(target=["user", "item"], outputs=8)
    predictor, buys = LinkPredictor(encoder, {"user buys item": Dot()}), ("user", "buys", "item")
    links = Links({buys: torch.tensor([[0, 1], [2, 3]])}, negatives={buys: torch.tensor([[4], [5]])})
    for fanouts in (None, [-1, -1]):
        expected_links = khop.evaluate_links(predictor, graph, links, fanouts=fanouts, rule=encoder.rule)
        assert khop.evaluate_links(predictor, graph, links, fanouts=fanouts) == expected_links
    found = khop.recommend(predictor, graph, buys, [0, 1], k=3)
    expected_found = khop.recommend(predictor, graph, buys, [0, 1], k=3, rule=encoder.rule)
    assert torch.equal(found.destinations, expected_found.destinations)
    with pytest.raises(ValueError, match="have no weights"):
        layerwise_inference(model, graph, graph.features, "item", rule=khop.Uniform())


@pytest.mark.parametrize("nodes", [[], torch.zeros(30, dtype=torch.bool)])
def test_no_nodes_give_no_rows(graph: Graph, nodes: list[int] | Tensor, tmp_path: Path) -> None:
    model = SAGE.for_graph(graph, hidden=8, layers=1, embedding=0)
    found = khop.infer(model, graph, tmp_path / "rows.npy", node_types="item", nodes=nodes)
    assert np.load(found["item"]).shape[0] == 0


class Plain(nn.Module):
    """Knows the label: it stands in the input."""

    def forward(self, batch: Batch) -> Tensor:
        return nn.functional.one_hot(batch["item", "y"], 3).float()[batch.sample.seed_index["item"]]


def test_a_module_without_layers_is_sampled_or_refused_with_the_remedy(graph: Graph) -> None:
    assert evaluate(Plain(), graph, split="val", fanouts=[2], columns=["y"]) == 1.0
    with pytest.raises(ValueError, match=r"Plain does not expose its layers.*loader=.*fanouts=\[\.\.\.\]"):
        evaluate(Plain(), graph, split="val")


class Words(nn.Module):
    """Reads another column than x, over as many blocks as there are."""

    def __init__(self, column: str = "words") -> None:
        super().__init__()
        self.column = column

    def forward(self, batch: Batch) -> Tensor:
        h = batch["item", self.column].float()
        for block in batch.blocks:
            edges = block.adjacencies[LIKE]
            h = h[: block.dst_counts["item"]] + segment_mean(h, edges.indptr, edges.indices)
        return h[batch.sample.seed_index["item"]]


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> Graph:
    """One node type without a column x."""
    generator = torch.Generator().manual_seed(4)
    items = NodeTable(
        columns={"words": torch.randn(200, 3, generator=generator), "y": torch.arange(200) % 3},
        splits={"val": torch.arange(50, 200)},
        num_classes={"y": 3},
    )
    ends = torch.randint(200, (2, 900), generator=generator)
    path: Path = tmp_path_factory.mktemp("graphs") / "words"
    return open_graph(write_graph(path, {"item": items}, {LIKE: EdgeTable(*ends)}))


def loader_of(graph: Graph, **settings: object) -> Loader:
    return Loader(NeighborSampler(graph, [3, 2], **settings), torch.arange(50), 10, columns=["words"])


def full_score(graph: Graph) -> float:
    """The same model over the whole graph, two hops."""
    h, csc = graph.columns["item"]["words"], graph.csc(LIKE)
    for _ in range(2):
        h = h + segment_mean(h, csc.indptr, csc.indices)
    return float((h.argmax(dim=1) == torch.arange(200) % 3)[50:].double().mean())


def test_columns_are_the_loaders_the_models_or_all_but_labels(words: Graph) -> None:
    expected = full_score(words)
    assert evaluate(Words(), words, split="val", fanouts=[-1, -1]) == expected
    assert evaluate(Words(), words, split="val", fanouts=[-1, -1], loader=loader_of(words)) == expected
    model = Words("y")
    with pytest.raises(ValueError, match="column 'y' of 'item': not in this batch"):
        evaluate(model, words, split="val", fanouts=[-1])
    model.input_columns = ("y",)  # type: ignore[assignment]
    with pytest.raises(IndexError):  # the label reaches the model, which cannot use it
        evaluate(model, words, split="val", fanouts=[])


def test_a_model_without_layers_is_exact_over_all_neighbors_and_a_warning_says_so(words: Graph) -> None:
    with pytest.warns(UserWarning, match=r"Words does not expose .* with all neighbors, 2 hops deep") as told:
        assert evaluate(Words(), words, split="val", loader=loader_of(words)) == full_score(words)
    assert len(told) == 1
    assert told[0].filename == __file__
    model = Words()
    model.num_layers = 2  # type: ignore[assignment]
    with pytest.warns(UserWarning, match="2 hops deep"):
        assert evaluate(model, words, split="val") == full_score(words)


def test_the_loaders_expansion_is_kept(words: Graph) -> None:
    class Of(Words):
        def forward(self, batch: Batch) -> Tensor:
            assert batch.sample.subgraph is not None
            return super().forward(batch)

    loader = loader_of(words, expansion=Expansion.SUBGRAPH)
    assert evaluate(Of(), words, split="val", fanouts=[-1, -1], loader=loader) == full_score(words)
    with pytest.warns(UserWarning, match="2 hops deep"):
        assert evaluate(Of(), words, split="val", loader=loader) == full_score(words)


def test_a_loader_by_time_cannot_evaluate_nodes_without_times(words: Graph) -> None:
    loader = loader_of(words)
    loader.graph_sampler.rule = Temporal("y")  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match=r"the loader samples by Temporal.* gives nodes no times"):
        evaluate(Words(), words, split="val", fanouts=[2], loader=loader)


class Rows(Words):
    """As an encoder gives them: by node type."""

    def forward(self, batch: Batch) -> dict[str, Tensor]:  # type: ignore[override]
        return {"item": super().forward(batch)}


def test_links_too_are_evaluated_by_any_encoder_over_all_neighbors(words: Graph) -> None:
    links = Links({LIKE: torch.randint(200, (2, 40))}, negatives={LIKE: torch.randint(200, (40, 5))})
    model = LinkPredictor(Rows(), {LIKE: Dot()})
    loader = Loader(LinkSampler(words, [3, 2]), Links(links.edges), 10, columns=["words"])
    sampled = evaluate_links(model, words, links, metrics=["mrr"], fanouts=[-1, -1])
    with pytest.warns(UserWarning, match="Rows does not expose .* 2 hops deep"):
        assert evaluate_links(model, words, links, metrics=["mrr"], loader=loader) == sampled


def test_another_task_can_be_named(graph: Graph) -> None:
    auc = evaluate(
        SAGE.for_graph(graph, embedding=0),
        graph,
        split="val",
        task=NodeClassification("item", "y", "roc-auc"),
    )
    assert 0.0 < auc < 1.0


def test_what_cannot_be_scored_is_named(graph: Graph) -> None:
    model = SAGE.for_graph(graph, embedding=0)
    with pytest.raises(ValueError, match="no split 'tests'"):
        evaluate(model, graph, split="tests")
    with pytest.raises(
        ValueError, match=r"split 'val': has nodes of \['item'\], but the task predicts 'user'"
    ):
        evaluate(model, graph, split="val", task=NodeClassification("user", "y"))
