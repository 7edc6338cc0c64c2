"""Exact inference by a rule without random draws takes the edges that training takes, wherever they are."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import khop
from khop.api.graph_from import MemoryEdges, memory_graph
from khop.api.serve import graph_on
from khop.batch import Batch
from khop.graph.features.store import Rows
from khop.graph.rule import Rule
from khop.inference.node_outputs import ExactDraws, layerwise_inference, sampled_inference
from khop.loading.columns import ColumnChoice
from khop.models.link_predictor import EdgePredictor, LinkPredictor
from khop.models.sage import SAGE
from khop.sampling.rules.sum import Sum, SymmetricSum
from khop.sampling.rules.top_k import TopK
from khop.sampling.sampler import Fanout
from khop.schema import EdgeType
from support.in_process import exchange_with

RANKED, PLAIN = ("node", "ranked", "node"), ("node", "plain", "node")
COUNT = 40
FANOUTS: Sequence[Fanout] = [{RANKED: 2, PLAIN: -1}, {RANKED: 1, PLAIN: -1}, {RANKED: 3, PLAIN: -1}]
RULES = [TopK("w"), Sum(TopK("w")), SymmetricSum(TopK("w"))]


def graph() -> khop.Graph:
    """Nodes with edges that a column ranks, with ties, and others."""
    generator = torch.Generator().manual_seed(3)

    def edges(count: int, **columns: Tensor) -> MemoryEdges:
        ends = torch.randint(COUNT, (2, count), generator=generator)
        return MemoryEdges(ends[0], ends[1], columns)

    weights = torch.randint(5, (300,), generator=generator).float()
    columns = {
        "x": torch.randn(COUNT, 6, generator=generator, dtype=torch.float64),
        "y": torch.randn(COUNT, generator=generator, dtype=torch.float64),
    }
    of_types: dict[EdgeType, MemoryEdges] = {RANKED: edges(300, w=weights), PLAIN: edges(100)}
    splits = {"val": {"node": torch.arange(0, COUNT, 3)}}
    return memory_graph({"node": COUNT}, of_types, {"node": columns}, splits=splits)


def model_of(whole: khop.Graph) -> SAGE:
    torch.manual_seed(5)
    return SAGE.for_graph(whole, hidden=8, embedding=0, layers=3, target="node", outputs=1).double()


def trained(model: nn.Module, whole: khop.Graph, rule: Rule, fanouts: Sequence[Fanout]) -> Tensor:
    """Outputs of one batch of all nodes, as a training step computes them."""
    sampler, nodes = khop.NeighborSampler(whole, fanouts, rule=rule), torch.arange(COUNT)
    choice = ColumnChoice({"node": ("x",)}, {}, {})
    return sampled_inference(model, sampler, whole.features, "node", nodes=nodes, columns=choice, seed=11)


def exact(model: nn.Module, whole: khop.Graph, rule: Rule, fanouts: Sequence[Fanout] | None) -> Tensor:
    return layerwise_inference(model, whole, whole.features, "node", rule=rule, fanouts=fanouts, chunk_size=7)


@pytest.mark.core(1)
@pytest.mark.parametrize("rule", RULES, ids=str)
def test_layer_by_layer_equals_the_batch_of_training(rule: Rule) -> None:
    whole = graph()
    model = model_of(whole)
    found = exact(model, whole, rule, FANOUTS)
    torch.testing.assert_close(found, trained(model, whole, rule, FANOUTS), rtol=0, atol=1e-11)
    assert not torch.allclose(found, exact(model, whole, rule, [-1, -1, -1]))


def test_it_does_on_partitions_and_on_servers(tmp_path: Path) -> None:
    whole = graph()
    model = model_of(whole)
    expected = trained(model, whole, TopK("w"), FANOUTS)
    whole.save(tmp_path / "whole")
    khop.partition_graph(tmp_path / "whole", tmp_path / "parts", 3, method="random")
    parts = khop.open_graph(tmp_path / "parts")
    originals = parts.original_ids("node")
    assert originals is not None
    found = exact(model, parts, TopK("w"), FANOUTS)
    torch.testing.assert_close(found, expected[originals], rtol=0, atol=1e-11)
    remote = graph_on(exchange_with(khop.open_graph(tmp_path / "whole"), 2))
    torch.testing.assert_close(exact(model, remote, TopK("w"), FANOUTS), expected, rtol=0, atol=1e-11)


def test_rows_in_files_are_the_same(tmp_path: Path) -> None:
    whole = graph()
    model = model_of(whole)
    given = {"rule": TopK("w"), "values": "outputs"}
    khop.infer(model, whole, tmp_path / "rows.npy", fanouts=FANOUTS, **given)  # type: ignore[arg-type]
    found = torch.from_numpy(np.load(tmp_path / "rows.npy"))
    torch.testing.assert_close(found, trained(model, whole, TopK("w"), FANOUTS), rtol=0, atol=1e-11)


class Forward(nn.Module):
    """A model that does not expose its layers."""

    def __init__(self, inner: SAGE) -> None:
        super().__init__()
        self.inner = inner
        self.input_columns = inner.input_columns

    def forward(self, batch: Batch) -> Tensor:
        rows: Tensor = self.inner(batch)
        return rows


@pytest.mark.filterwarnings("ignore:Forward does not expose its layers")
def test_evaluation_takes_the_fanouts_of_the_loader() -> None:
    whole = graph()
    model, task = model_of(whole), khop.NodeRegression("node", "y")
    sampler = khop.NeighborSampler(whole, FANOUTS, rule=TopK("w"))
    loader = khop.Loader(sampler, torch.arange(COUNT), 8, columns=["x"])
    nodes = torch.arange(0, COUNT, 3)
    outputs = trained(model, whole, TopK("w"), FANOUTS)[nodes]
    labels = whole.features.gather({"node": Rows(nodes, ("y",))})["node"]["y"]
    expected = task.score(outputs, labels, nodes)
    for of in (model, Forward(model)):
        assert khop.evaluate(of, whole, split="val", task=task, loader=loader) == pytest.approx(expected)
    everything = khop.evaluate(model, whole, split="val", task=task)
    assert everything != pytest.approx(expected)


def test_links_are_scored_over_the_edges_of_training() -> None:
    whole, ends = graph(), torch.arange(COUNT).view(2, -1)
    encoder = SAGE.for_graph(whole, hidden=8, embedding=0, layers=3, target=["node"], outputs=8)
    model = LinkPredictor.of(encoder, [RANKED], "dot", 8).double()
    links = khop.with_negatives(whole, khop.Links({RANKED: ends}), khop.UniformNegatives(9))
    sampler = khop.LinkSampler(whole, FANOUTS, rule=TopK("w"))
    loader = khop.Loader(sampler, khop.Links({RANKED: ends}), 8, columns=["x"])
    given = {"rule": TopK("w"), "metrics": ["mrr"]}
    found = khop.evaluate_links(model, whole, links, loader=loader, **given)  # type: ignore[arg-type]
    sampled = khop.evaluate_links(model, whole, links, fanouts=FANOUTS, **given)  # type: ignore[arg-type]
    assert found == pytest.approx(sampled)
    with pytest.raises(ValueError, match=r"TopK.*the fanouts of training are unknown: give fanouts="):
        khop.evaluate_links(model, whole, links, **given)  # type: ignore[arg-type]


@pytest.mark.parametrize(("rule", "fanouts"), [(TopK("w"), FANOUTS), (Sum(), [-1, -1, -1])], ids=str)
def test_links_and_edges_take_the_rule_of_the_loader(rule: Rule, fanouts: Sequence[Fanout]) -> None:
    whole, ends = graph(), torch.arange(COUNT).view(2, -1)
    torch.manual_seed(7)
    encoder = SAGE.for_graph(whole, hidden=8, embedding=0, layers=3, target=["node"], outputs=8)
    ranked = LinkPredictor.of(encoder, [RANKED], "dot", 8).double()
    labeled = EdgePredictor.of(encoder, [RANKED], 8, outputs=1).double()
    links = khop.Links({RANKED: ends}, labels={RANKED: torch.rand(COUNT // 2, dtype=torch.float64)})
    task = khop.EdgeRegression(RANKED, "w")
    among = khop.with_negatives(whole, khop.Links({RANKED: ends}), khop.UniformNegatives(9))
    loader = khop.Loader(khop.LinkSampler(whole, fanouts, rule=rule), links, 8, columns=["x"])

    def found(**given: object) -> list[float]:
        mrr = khop.evaluate_links(ranked, whole, among, metrics=["mrr"], **given)["mrr"]  # type: ignore[arg-type]
        return [mrr, khop.evaluate_edges(labeled, whole, links, task, **given)]  # type: ignore[arg-type]

    trained_on = found(rule=rule, fanouts=fanouts)
    assert found(loader=loader) == pytest.approx(trained_on)
    assert found(loader=loader, fanouts=fanouts) == pytest.approx(trained_on)
    means = found(loader=loader, rule=khop.Uniform())
    assert all(other != pytest.approx(score) for other, score in zip(means, trained_on, strict=True))


def test_groups_of_seeds_have_all_edges() -> None:
    """ShaDow has all edges among the nodes of a group, so exact inference takes all neighbors."""
    whole = graph()
    model, task = model_of(whole), khop.NodeRegression("node", "y")
    sampler = khop.ShadowSampler(whole, [2], layers=3, rule=TopK("w"))
    loader = khop.Loader(sampler, torch.arange(COUNT), 8, columns=["x"])
    scores = [khop.evaluate(model, whole, split="val", task=task, loader=of) for of in (loader, None)]
    assert scores[0] == scores[1]


def test_fanouts_that_are_missing_or_too_few_are_named() -> None:
    schema = graph().schema
    with pytest.raises(ValueError, match=r"fanouts of training are unknown: give fanouts=\[...\], one per"):
        ExactDraws(TopK("w")).of_layers(schema, schema.edge_types, 2)
    with pytest.raises(ValueError, match="the model has 2 layers; give one fanout per layer"):
        ExactDraws(TopK("w"), [3]).of_layers(schema, schema.edge_types, 2)
    # An edge type without the column needs none, and neither do other rules.
    assert ExactDraws(TopK("w")).of_layers(schema, [PLAIN], 1) == ({RANKED: 0, PLAIN: -1},)
    assert ExactDraws(fanouts=[3, 0]).of_layers(schema, [RANKED], 1) == ({RANKED: -1, PLAIN: 0},)
    layers = ExactDraws(TopK("w"), [3, 0]).of_layers(schema, schema.edge_types, 2)
    assert layers == ({RANKED: 0, PLAIN: -1}, {RANKED: 3, PLAIN: -1})
