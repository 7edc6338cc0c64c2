"""Held-out links are scored from the rows of all nodes: what batches would give, in any chunks.

Outputs of edges: exact over all neighbors, alike in every chunk, and the same over servers.

Scores of links over samples: exact over all neighbors, and alike in every chunk.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from statistics import fmean

import pytest
import torch
from torch import Tensor
from torch_geometric.data import HeteroData

import khop
from khop.api.inference import evaluate_edges, evaluate_links
from khop.api.open_graph import Graph
from khop.draw import GivenNegatives, NegativeMode, UniformNegatives
from khop.graph.features.table import FeatureTable
from khop.graph.store import csc_graph_from_edges
from khop.inference import link_evaluation
from khop.inference.chunks import InferenceWork
from khop.inference.evaluation import scores
from khop.inference.link_evaluation import (
    exact_edge_outputs,
    link_scores,
    mean_metrics,
    node_rows,
    sampled_edge_outputs,
    sampled_link_scores,
    with_negatives,
)
from khop.inference.node_outputs import ALL_NEIGHBORS
from khop.inference.stages import Stage, row_table
from khop.loading.columns import ColumnChoice
from khop.models.decoders import DecoderKind
from khop.models.link_predictor import EdgePredictor, LinkPredictor
from khop.sampling.links.link_seeds import Links
from khop.sampling.links.links import LinkSampler
from khop.schema import EdgeType
from khop.training.edge_tasks import EdgeClassification, LinkPrediction
from khop.training.metrics import average_precision, binary_roc_auc
from khop.training.tasks import NodeClassification
from support.small_graphs import one_type
from support.small_links import BUYS, ON, WIDTH, LinkBatches, graph, links, predictor

TYPES = ("user", "item", "tag", "item")


@pytest.mark.core(1)
@pytest.mark.parametrize("decoder", ["dot", "mlp", "distmult"])
@pytest.mark.parametrize("chunk_numbers", [1, 100, 1 << 22])
def test_scores_are_those_of_batches_over_all_neighbors(
    decoder: DecoderKind, chunk_numbers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link_evaluation, "CHUNK_NUMBERS", chunk_numbers)
    sizes, decoded = list[tuple[int, int]](), link_evaluation.decoded_rows

    def noting(stage: Stage, *rest: object) -> Tensor:
        sizes.append((stage.count, max(map(stage.size, range(stage.num_chunks)))))
        return decoded(stage, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(link_evaluation, "decoded_rows", noting)
    model, whole = predictor(decoder), graph()
    rows = node_rows(model.encoder, whole, whole.features, TYPES, chunk_size=11)
    found = link_scores(model, row_table(rows), links(3))
    numbers = (1 + 1 + 3) * WIDTH  # values of a link: its source, its destination and three negatives
    most = max(1, chunk_numbers // numbers)
    assert sizes == [(count, min(count, most)) for count in (16, 7)]
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
    scores, of_negatives = link_scores(model, row_table(rows), given)[BUYS]
    source, destination = given.edges[BUYS][:, 5]
    assert given.negatives is not None
    negative = given.negatives[BUYS][5, 2]
    torch.testing.assert_close(scores[5], rows["user"][source] @ rows["item"][destination])
    torch.testing.assert_close(of_negatives[5, 2], rows["user"][source] @ rows["item"][negative])


def test_links_without_negatives_are_refused() -> None:
    with pytest.raises(ValueError, match="links without negatives cannot be evaluated"):
        link_scores(predictor(), row_table({}), links())


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
    assert drawn[0].edges == given.edges  # the same tensors


def test_a_model_is_measured_by_several_metrics_from_one_pass() -> None:
    model, whole, given = predictor("dot"), graph(), links(3)
    rows = node_rows(model.encoder, whole, whole.features, TYPES)
    scores = link_scores(model, row_table(rows), given)
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
    with pytest.raises(ValueError, match=r"evaluate_links of a SAGE: must be a khop\.models\.LinkPredictor"):
        evaluate_links(predictor().encoder, graph(), links(3))


def test_evaluate_links_samples_where_fanouts_are_given() -> None:
    model, whole = predictor("dot"), graph()
    exact = evaluate_links(model, whole, links(5))
    assert evaluate_links(model, whole, links(5), fanouts=[-1, -1]) == pytest.approx(exact, rel=1e-9)
    assert evaluate_links(model, whole, links(5), fanouts=[1, 1]) != exact


def timed() -> Links:
    of = links(2)
    return replace(of, times={t: torch.arange(ends.shape[1]) for t, ends in of.edges.items()})


OUTSIDE = {t: torch.full((ends.shape[1], 1), 40) for t, ends in links().edges.items()}


@pytest.mark.parametrize(
    ("of", "settings", "message"),
    [
        (links(2), {"metrics": ["mr"]}, "metric 'mr': must be one of"),
        (links(2), {"metrics": "mrr"}, r"metrics 'mrr': give a list of them, such as \['mrr'\]"),
        (
            replace(links(), negatives=OUTSIDE),
            {},
            "negatives of .*buys.*: there is no node 40; ids go from 0",
        ),
        (
            Links({BUYS: torch.tensor([[30], [0]])}, negatives={BUYS: torch.tensor([[1]])}),
            {},
            "links of .*buys.*, sources: there is no node 30",
        ),
        (timed(), {}, r"links have times, .*: give fanouts=\[\.\.\.\] and rule=khop.Temporal"),
        (timed(), {"fanouts": [2, 2]}, "links of .* have times, but Uniform"),
        (links(), {"fanouts": [2, 2]}, "links without negatives cannot be evaluated"),
    ],
)
def test_links_that_cannot_be_evaluated_are_named(
    of: Links, settings: dict[str, object], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        evaluate_links(predictor(), graph(), of, **settings)  # type: ignore[arg-type]


def test_negatives_for_links_in_time_are_there_in_time() -> None:
    made, days = graph(), torch.arange(40)
    columns = {"item": {"day": days}}
    topology = csc_graph_from_edges(
        {"user": 30, "item": 40}, {BUYS: (torch.arange(30), torch.arange(30))}, columns=columns
    )
    assert isinstance(made.features, FeatureTable)
    of = Links({BUYS: links().edges[BUYS]}, times={BUYS: torch.arange(5, 21)})
    drawn = with_negatives(Graph(topology, made.features), of, UniformNegatives(20), time="day").negatives
    assert drawn is not None
    assert bool((drawn[BUYS] <= torch.arange(5, 21)[:, None]).all())
    with pytest.raises(ValueError, match="time 'day': the links have no times"):
        with_negatives(topology, replace(of, times=None), UniformNegatives(2), time="day")
    with pytest.raises(ValueError, match=r"GivenNegatives\(.*\): cannot be sampled; use khop.Uniform"):
        with_negatives(topology, of, GivenNegatives())  # type: ignore[arg-type]


@pytest.mark.core(1)
@pytest.mark.parametrize("fanouts", [None, [-1, -1]])
def test_links_with_labels_are_compared_with_each_other(fanouts: list[int] | None) -> None:
    whole, model = graph(), predictor()
    random = torch.Generator().manual_seed(1)
    edges = links().edges
    labels = {t: torch.randint(2, (ends.shape[1],), generator=random) for t, ends in edges.items()}
    given = Links(edges, {t: of.float() for t, of in labels.items()})
    found = evaluate_links(model, whole, given, fanouts=fanouts)
    rows = row_table(node_rows(model.encoder, whole, whole.features, TYPES))
    nothing = {t: ends.new_zeros(ends.shape[1], 0) for t, ends in edges.items()}
    scores = {
        t: of[0].sigmoid() for t, of in link_scores(model, rows, Links(edges, negatives=nothing)).items()
    }
    areas = [binary_roc_auc(scores[t], labels[t]) for t in edges]
    precisions = [average_precision(scores[t], labels[t]) for t in edges]
    wanted = {"roc-auc": sum(areas) / 2, "average-precision": sum(precisions) / 2}
    assert found == pytest.approx(wanted, rel=1e-5)


def test_links_of_pyg_are_evaluated_by_their_labels() -> None:
    whole, model = graph(), predictor()
    data, edges = HeteroData(), links().edges
    for edge_type, ends in edges.items():
        data[edge_type].edge_label_index = ends
        data[edge_type].edge_label = torch.arange(ends.shape[1]) % 2
    given = khop.links_from_pyg(data)
    assert evaluate_links(model, whole, given).keys() == {"roc-auc", "average-precision"}
    with pytest.raises(ValueError, match="metric 'ndcg@3': ranks each link among its negatives"):
        evaluate_links(model, whole, given, metrics=["ndcg@3"])
    assert evaluate_links(model, whole, given, metrics=["hits@9999"]) == {"hits@9999": 1.0}
    wrong = {t: torch.full((ends.shape[1],), 4) for t, ends in edges.items()}
    with pytest.raises(ValueError, match=r"labels of .*: value 4; .*evaluate_edges scores other labels"):
        evaluate_links(model, whole, Links(edges, wrong))


@pytest.mark.core(1)
@pytest.mark.parametrize("fanouts", [None, [-1, -1]])
def test_negatives_padded_with_minus_one_are_not_compared(fanouts: list[int] | None) -> None:
    whole, model = graph(), predictor()
    full = links(5)
    assert full.negatives is not None
    shorter = {t: of[:, :3] for t, of in full.negatives.items()}
    padded = {t: torch.nn.functional.pad(of, (1, 2), value=-1) for t, of in shorter.items()}

    def measured(negatives: dict[EdgeType, Tensor]) -> dict[str, float]:
        metrics = ["mrr", "roc-auc", "average-precision", "hits@2", "recall@2", "ndcg@2"]
        given = Links(full.edges, negatives=negatives)
        return evaluate_links(model, whole, given, metrics=metrics, fanouts=fanouts)

    assert measured(padded) == pytest.approx(measured(shorter), rel=1e-12)
    assert measured(padded) != measured(dict(full.negatives))
    with pytest.raises(ValueError, match=r"negatives of .*: there is no node -2"):
        measured({t: of.masked_fill(of == -1, -2) for t, of in padded.items()})


@pytest.mark.parametrize("fanouts", [None, [-1, -1]])
@pytest.mark.parametrize("metric", ["mrr", "hits@3", "roc-auc", "average-precision"])
def test_links_without_a_negative_are_refused(fanouts: list[int] | None, metric: str) -> None:
    whole, model, full = graph(), predictor(), links(5)
    assert full.negatives is not None

    def refused(of_type: Tensor, sentence: str) -> None:
        given = Links(full.edges, negatives={**full.negatives, BUYS: of_type})  # type: ignore[dict-item]
        with pytest.raises(ValueError, match=sentence):
            evaluate_links(model, whole, given, metrics=[metric], fanouts=fanouts)

    negatives = full.negatives[BUYS].clone()
    negatives[[3, 9]] = -1
    refused(negatives, "^link 3 of user buys item has only padding; leave it out or give a negative$")
    refused(negatives[:, :0], "^link 0 of user buys item has no negative; leave it out or give a negative$")
    with pytest.raises(ValueError, match="link 0 of user buys item has no negative"):  # of any list of links
        mean_metrics({BUYS: (torch.rand(4), torch.rand(4, 0))}, [metric])
    with pytest.raises(ValueError, match="link 0 has no negative; remove the link"):
        LinkPrediction(metric=metric).score(torch.rand(4), torch.rand(4, 0))


@pytest.mark.core(2)
@pytest.mark.parametrize("k", [1, 2, 7, 50, 10**17])
def test_places_are_counted_up_to_any_k(k: int) -> None:
    whole, model = graph(), predictor()
    rows = node_rows(model.encoder, whole, whole.features, TYPES)
    scores = link_scores(model, row_table(rows), links(9))
    names = [f"{kind}@{k}" for kind in ("hits", "recall", "ndcg")]
    found = evaluate_links(model, whole, links(9), metrics=names)

    def mean(gain: Callable[[float], float]) -> float:
        of_types = []
        for own, negatives in scores.values():
            above = (negatives > own.unsqueeze(1)).sum(1).tolist()
            tied = (negatives == own.unsqueeze(1)).sum(1).tolist()
            of_types.append(fmean(gain(1 + a + t / 2) for a, t in zip(above, tied, strict=True)))
        return fmean(of_types)

    hits, gains = mean(lambda place: place <= k), mean(lambda place: (place <= k) / math.log2(place + 1))
    assert found == pytest.approx(dict(zip(names, (hits, hits, gains), strict=True)))


@pytest.mark.parametrize("name", ["hits@0", "hits@", "hits@-1", "hits@1.5", "hits", "mrr@3", "auc"])
def test_a_metric_that_does_not_exist_is_named(name: str) -> None:
    with pytest.raises(ValueError, match=r"must be one of mrr, .*hits@K, recall@K, ndcg@K"):
        evaluate_links(predictor(), graph(), links(3), metrics=[name])


def model_of() -> EdgePredictor:
    torch.manual_seed(2)
    return EdgePredictor.of(predictor("dot").encoder, [BUYS, ON], 5, 3).double()


def labeled() -> khop.Links:
    given = links(0)
    return khop.Links(given.edges, {t: torch.arange(n) % 4 - 1 for t, n in given.counts.items()})


@pytest.mark.core(1)
@pytest.mark.parametrize("chunk_size", [3, 100])
def test_exact_outputs_are_those_of_the_heads_over_the_rows_of_all_nodes(chunk_size: int) -> None:
    model, whole, given = model_of(), graph(), labeled()
    work = InferenceWork(chunk_size)
    found = exact_edge_outputs(model, whole, whole.features, given, work, ALL_NEIGHBORS)
    rows = node_rows(model.encoder, whole, whole.features, TYPES)
    columns = ColumnChoice.of(whole.schema, ["x"], (), ())
    sampler = LinkSampler(whole, [-1, -1])
    sampled = sampled_edge_outputs(model, sampler, whole.features, given, columns, work)
    for edge_type, (sources, destinations) in given.edges.items():
        expected = model.head(edge_type)(rows[edge_type[0]][sources], rows[edge_type[2]][destinations])
        torch.testing.assert_close(found[edge_type], expected, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(sampled[edge_type], expected, rtol=1e-9, atol=1e-9)


def test_an_edge_is_sampled_alike_in_every_chunk_and_every_evaluation() -> None:
    model, whole, sampler = model_of(), graph(), LinkSampler(graph(), [2, 1], trees="disjoint")
    columns = ColumnChoice.of(whole.schema, ["x"], (), ())
    first, second, other = (
        sampled_edge_outputs(model, sampler, whole.features, labeled(), columns, InferenceWork(size), seed)
        for size, seed in ((2, 0), (23, 0), (23, 1))
    )
    torch.testing.assert_close(first[BUYS], second[BUYS], rtol=1e-9, atol=1e-9)
    assert not torch.allclose(second[BUYS], other[BUYS])


def test_a_score_is_that_of_the_outputs() -> None:
    model, whole, task = model_of(), khop.Graph.of(graph()), EdgeClassification(BUYS, "stars")
    outputs = exact_edge_outputs(model, whole, whole.features, labeled(), InferenceWork(100), ALL_NEIGHBORS)[
        BUYS
    ]
    labels = torch.arange(outputs.shape[0]) % 4 - 1
    expected = float((outputs.argmax(1) == labels)[labels >= 0].double().mean())
    assert evaluate_edges(model, whole, labeled(), task) == expected
    assert evaluate_edges(model, whole, labeled(), task, fanouts=[-1, -1], columns=["x"]) == expected


def test_links_without_labels_and_other_models_are_errors() -> None:
    model, whole, task = model_of(), khop.Graph.of(graph()), EdgeClassification(BUYS, "stars")
    with pytest.raises(ValueError, match="links without labels cannot be evaluated"):
        evaluate_edges(model, whole, links(0), task)
    with pytest.raises(ValueError, match=r"links of .*: there are none to evaluate"):
        evaluate_edges(model, whole, labeled(), EdgeClassification("a b c", "stars"))
    with pytest.raises(ValueError, match=r"evaluate_edges of a LinkPredictor: must be a khop.models.EdgePr"):
        evaluate_edges(predictor("dot"), whole, labeled(), task)


@pytest.mark.parametrize("chunk_size", [3, 100])
def test_sampled_scores_of_all_neighbors_are_the_exact_ones(chunk_size: int) -> None:
    model, whole = predictor("mlp"), graph()
    exact = link_scores(model, row_table(node_rows(model.encoder, whole, whole.features, TYPES)), links(3))
    sampler = LinkSampler(whole, [-1, -1], negatives=GivenNegatives(NegativeMode.TRIPLET))
    columns = ColumnChoice.of(whole.schema, ["x"], (), ())
    sampled = sampled_link_scores(
        model, sampler, whole.features, links(3), columns, InferenceWork(chunk_size)
    )
    for edge_type in (BUYS, ON):
        for ours, theirs in zip(sampled[edge_type], exact[edge_type], strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)


@pytest.mark.long
def test_a_link_is_sampled_alike_in_every_chunk_and_every_evaluation() -> None:
    model, whole = predictor("mlp"), graph()
    sampler = LinkSampler(whole, [2, 1], negatives=GivenNegatives(NegativeMode.TRIPLET), trees="disjoint")
    columns = ColumnChoice.of(whole.schema, ["x"], (), ())
    first, second, other = (
        sampled_link_scores(model, sampler, whole.features, links(3), columns, InferenceWork(size), seed)[
            BUYS
        ][1]
        for size, seed in ((2, 0), (23, 0), (23, 1))
    )
    torch.testing.assert_close(first, second, rtol=1e-9, atol=1e-9)
    assert not torch.allclose(second, other)


TO = ("node", "to", "node")


@pytest.mark.core(1)
@pytest.mark.parametrize("fanouts", [[-1, -1], None])
def test_links_of_one_node_type_take_an_encoder_of_rows_alone(fanouts: list[int] | None) -> None:
    """A classifier, one named target and a user's module give a tensor, several targets a mapping."""
    small = one_type()
    whole = Graph(small.store, small.features)
    torch.manual_seed(3)
    typed = khop.models.SAGE.for_graph(whole, 8, 2, target=["node"], outputs=3)
    ends = torch.stack([torch.arange(9), torch.arange(9) + 20])
    compared = Links({TO: ends}, negatives={TO: torch.arange(18).view(9, 2) + 30})
    labeled = Links({TO: ends}, {TO: torch.arange(9) % 2})
    for encoder in (
        khop.models.SAGE.for_graph(whole, 8, 2),
        khop.models.SAGE.for_graph(whole, 8, 2, target="node", outputs=3),
    ):
        encoder.load_state_dict(typed.state_dict())
        for given in (compared, labeled):
            found, wanted = (
                evaluate_links(LinkPredictor.of(one, [TO], "dot", 3), whole, given, fanouts=fanouts)
                for one in (encoder, typed)
            )
            assert found == wanted
        torch.manual_seed(4)
        head = EdgePredictor.of(encoder, [TO], 3, 2)
        again = EdgePredictor(typed, {TO: head.head(TO)})
        task = EdgeClassification(TO, "stars")
        assert evaluate_edges(head, whole, labeled, task, fanouts=fanouts) == evaluate_edges(
            again, whole, labeled, task, fanouts=fanouts
        )


@pytest.mark.parametrize(
    ("target", "sentence"),
    [
        ("item", r"the encoder returns a Tensor, but the links have the node types \['user', 'item'\]"),
        (["user", "item"], r"the encoder returns \['user', 'item'\], but .*give an encoder of these"),
    ],
)
def test_an_encoder_without_rows_of_an_end_is_refused(target: str | list[str], sentence: str) -> None:
    encoder = khop.models.SAGE.for_graph(graph(), 8, 2, target=target, outputs=4, embedding=4).double()
    with pytest.raises(ValueError, match=sentence):
        evaluate_links(LinkPredictor.of(encoder, [BUYS, ON], "dot", 4), graph(), links(3), fanouts=[2, 2])
    with pytest.raises(ValueError, match=sentence):
        evaluate_edges(
            EdgePredictor.of(encoder, [BUYS, ON], 4, 2).double(), graph(), labeled(),
            EdgeClassification(BUYS, "stars"), fanouts=[2, 2],
        )  # fmt: skip


def test_rows_that_are_not_one_per_seed_are_refused() -> None:
    small = one_type()

    class AllNodes(torch.nn.Module):
        def forward(self, batch: khop.Batch) -> Tensor:
            return batch["x"]

    given = Links({TO: torch.tensor([[0, 1], [2, 3]])}, negatives={TO: torch.tensor([[4], [5]])})
    with pytest.raises(
        ValueError, match=r"returns \d+ rows of 'node', but the batch has \d+ seeds: return one"
    ):
        evaluate_links(
            LinkPredictor.of(AllNodes(), [TO], "dot", 7),
            Graph(small.store, small.features),
            given,
            fanouts=[3],
        )


# Splits are scored together and apart.


LABELS = torch.tensor([0, 1, 1, 0, -1])
FEATURES = FeatureTable({"node": {"y": LABELS}})
TASK = NodeClassification("node", "y")


def test_each_split_has_its_score_from_one_pass() -> None:
    asked: list[Tensor] = []

    def outputs_of(nodes: Tensor) -> Tensor:
        asked.append(nodes)
        return torch.nn.functional.one_hot(torch.ones_like(nodes), 2).float()  # always says 1

    splits = {"train": torch.tensor([3, 1]), "val": torch.tensor([2]), "test": torch.tensor([0])}
    assert scores(TASK, FEATURES, splits, outputs_of) == {"train": 0.5, "val": 1.0, "test": 0.0}
    assert [nodes.tolist() for nodes in asked] == [[3, 1, 2, 0]]


def test_an_empty_split_is_named() -> None:
    with pytest.raises(ValueError, match="split 'val' of 'node' has no nodes to score; leave it out"):
        scores(TASK, FEATURES, {"train": torch.tensor([1]), "val": torch.tensor([]).long()}, torch.zeros_like)


def test_a_node_without_a_label_is_named() -> None:
    with pytest.raises(ValueError, match="node 4 of 'node' has y -1"):
        scores(TASK, FEATURES, {"val": torch.tensor([1, 4])}, lambda nodes: torch.zeros(len(nodes), 2))


def test_the_labels_of_a_graph_are_found() -> None:
    graph = one_type()
    labels = graph.features.columns["node"]["y"]
    perfect = scores(
        TASK, graph.features, {"all": torch.arange(60)}, lambda nodes: torch.eye(3)[labels[nodes]]
    )
    assert perfect == {"all": 1.0}
