"""The test split of a run: confusion, ranks, and the worst predictions under the users' ids."""

from __future__ import annotations

import numpy as np
import torch

from khop.graph.node_ids import IdsHere, Names
from khop.inference.evaluation import SplitOutputs
from khop.inference.predictions import LinkPredictions, NodePredictions
from khop.kernels.id_table import StringKeys
from khop.run.reporting.examined import Confusion, Examined, RankingCurve, Scatter, _confusion, examined
from khop.sampling.links.link_seeds import Links


def of_classes(labels: list[int], outputs: list[list[float]], names: Names) -> Examined:
    split = SplitOutputs(torch.arange(len(labels)), torch.tensor(labels), torch.tensor(outputs))
    found = examined(NodePredictions("page", "label", {"test": split}), names, "test")
    assert isinstance(found, Examined)
    return found


NAMES = Names({"page": IdsHere(StringKeys.of(["a", "b", "c", "d"]))}, {"page": {"classes": ["cat", "dog"]}})


def test_the_worst_nodes_come_first_under_the_users_ids_and_class_names() -> None:
    found = of_classes([0, 1, 1, -1], [[4.0, 0.0], [9.0, 0.0], [0.0, 1.0], [0.0, 0.0]], NAMES)
    assert found.worst[0][:3] == ("b", "dog", "cat")
    assert [row[0] for row in found.worst] == ["b", "c", "a"]  # d has no label
    assert found.picture == Confusion(("cat", "dog"), ((1, 0), (1, 1)))


def test_rare_classes_of_many_are_joined() -> None:
    count = 40
    labels = [number for number in range(count) for _ in range(2 if number < 30 else 1)]
    found = of_classes(labels, torch.eye(count)[torch.tensor(labels)].mul(9).tolist(), Names())
    assert isinstance(found.picture, Confusion)
    assert found.picture.names[-1] == "10 others"
    assert sum(map(sum, found.picture.counts)) == len(labels)
    assert all(row[at] == sum(row) for at, row in enumerate(found.picture.counts))


def test_nodes_of_partitioned_graphs_have_their_original_ids() -> None:
    split = SplitOutputs(torch.tensor([1]), torch.tensor([0]), torch.tensor([[0.0, 1.0]]))
    names = Names(original_ids={"page": IdsHere(np.array([7, 5]))})
    found = examined(NodePredictions("page", "label", {"test": split}), names, "test")
    assert isinstance(found, Examined)
    assert found.worst[0][0] == "5"


def test_numbers_are_shown_beside_their_predictions() -> None:
    labels = torch.tensor([1.0, 2.0, float("nan")])
    split = SplitOutputs(torch.arange(3), labels, torch.tensor([[1.5], [9.0], [0.0]]))
    found = examined(NodePredictions("page", "label", {"test": split}), NAMES, "test")
    assert isinstance(found, Examined)
    assert found.picture == Scatter(((1.0, 1.5), (2.0, 9.0)))
    assert found.worst[0] == ("b", "2", "9", "+7")


def test_links_are_ranked_among_their_negatives() -> None:
    edge_type = ("user", "buys", "item")
    scores, negatives = torch.tensor([3.0, 1.0, 0.0]), torch.tensor([[1.0, 2.0], [2.0, 0.0], [1.0, 2.0]])
    links = Links({edge_type: torch.tensor([[0, 1, 2], [2, 1, 0]])})
    names = Names({"user": IdsHere(np.array([10, 11, 12])), "item": IdsHere(StringKeys.of(["x", "y", "z"]))})
    found = examined(
        LinkPredictions((edge_type,), {"test": (links, {edge_type: (scores, negatives)})}), names, "test"
    )
    assert isinstance(found, Examined)
    assert found.picture == RankingCurve((1, 2, 3), (1 / 3, 2 / 3, 1.0), 2)
    assert found.worst[0] == ("12", "x", "0", "3 of 3")


def test_links_of_several_types_are_named_by_type() -> None:
    buys, views = ("user", "buys", "item"), ("user", "views", "item")
    links = Links({buys: torch.tensor([[0], [1]]), views: torch.tensor([[1, 2], [0, 2]])})
    scores = {
        buys: (torch.tensor([5.0]), torch.tensor([[1.0]])),
        views: (torch.tensor([0.0, 9.0]), torch.tensor([[1.0], [1.0]])),
    }
    found = examined(LinkPredictions((buys, views), {"test": (links, scores)}), Names({}), "test")
    assert isinstance(found, Examined)
    assert found.heading == ("edge type", "source", "destination", "score", "rank")
    assert found.worst[0] == ("user views item", "1", "0", "0", "2 of 2")
    assert found.worst[1] == ("user buys item", "0", "1", "5", "1 of 2")


def test_the_table_of_millions_of_classes_has_the_most_frequent_ones() -> None:
    names = range(2_000_000)
    labels = torch.cat([torch.arange(100).repeat_interleave(2) * 10_000, torch.tensor([7] * 9)])
    predicted = labels.clone()
    predicted[-1] = 999_999
    found = _confusion(labels, predicted, [str(name) for name in names])
    assert found.names == ("0", "7", *(str(at * 10_000) for at in range(1, 29)), "72 others")
    assert found.counts[1] == (0, 8, *[0] * 28, 1)
    assert found.counts[0] == (2, *[0] * 30)
    assert found.counts[-1] == (*[0] * 30, 142)
