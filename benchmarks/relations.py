"""What does a step cost with 474 edge types, over the same with one edge type and a column of relations?

A knowledge graph as large as FB15k-237 with inverses, with random triples. Steps of link prediction (1,024
triples, 16 negatives, width 64, Adam) on ready batches of all neighbors: a decoder (DistMult) over
embeddings, and R-GCN with 8 bases below it. "One by one" computes edge types one after another:
a decoder of its own for each type, and for R-GCN a product for each type. SAGE and the decoder MLP always do
so; one edge type without relations stands beside them. Every round takes one step of each way in turn.

usage: OMP_WAIT_POLICY=passive python benchmarks/relations.py [--rounds 5] [--layers 1] [--threads 2]
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Mapping
from statistics import median

import torch
from harness import Figure, report
from torch import Tensor, nn

import khop
from khop.batch import Batch
from khop.models.layer import Layer
from khop.models.link_predictor import LinkPredictor
from khop.models.rgcn import RGCN, RelationColumn, RgcnLayer
from khop.models.sage import SAGE
from khop.schema import EdgeType
from khop.training.edge_tasks import LinkPrediction

ENTITIES, RELATIONS, TRIPLES, WIDTH = 14_541, 237, 272_115, 64
ONE: EdgeType = ("entity", "fact", "entity")


class Rows(nn.Module):
    """An embedding per entity."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(ENTITIES, WIDTH) / 8)

    def forward(self, batch: Batch) -> Mapping[str, Tensor]:
        return {"entity": self.table.index_select(0, batch.seed_nodes["entity"])}


class OneByOne(RGCN):
    """R-GCN that computes edge types one after another."""

    def forward(self, batch: Batch) -> Tensor | dict[str, Tensor]:
        together = RgcnLayer.totals
        RgcnLayer.totals = Layer.totals  # type: ignore[method-assign]
        try:
            return super().forward(batch)
        finally:
            RgcnLayer.totals = together  # type: ignore[method-assign]


def facts() -> tuple[Tensor, Tensor]:
    """Return ends (2, n) and relations (n), inverses as further relations; few are frequent."""
    random = torch.Generator().manual_seed(0)
    ends = torch.randint(ENTITIES, (2, TRIPLES), generator=random)
    shares = 1 / torch.arange(1, RELATIONS + 1)
    relations = torch.multinomial(shares, TRIPLES, replacement=True, generator=random)
    return torch.cat([ends, ends.flip(0)], 1), torch.cat([relations, relations + RELATIONS])


def graphs(home: str) -> tuple[khop.Graph, khop.Graph, list[EdgeType]]:
    ends, relations = facts()
    nodes = {"entity": khop.NodeTable(columns={"x": torch.randn(ENTITIES, WIDTH)})}
    one = khop.write_graph(f"{home}/one", nodes, {ONE: khop.EdgeTable(*ends, {"r": relations})})
    types = [("entity", f"r{number}", "entity") for number in range(2 * RELATIONS)]
    tables = {t: khop.EdgeTable(*ends[:, relations == number]) for number, t in enumerate(types)}
    many = khop.write_graph(f"{home}/many", nodes, tables)
    return khop.open_graph(one), khop.open_graph(many), types


def batches(graph: khop.Graph, types: list[EdgeType], layers: int) -> Batch:
    """Return a batch of 1,024 triples with 16 negatives each, the same triples for both graphs."""
    ends, relations = facts()
    random = torch.Generator().manual_seed(1)
    some = torch.randperm(TRIPLES, generator=random)[:1024]
    some = some[relations[some].argsort(stable=True)]
    ends, relations = ends[:, some], relations[some]
    negatives = torch.randint(ENTITIES, (1024, 16), generator=random)
    masks = {t: relations == number for number, t in enumerate(types)}
    masks = {t: mask for t, mask in masks.items() if mask.any()} or {ONE: torch.ones(1024, dtype=torch.bool)}
    links = khop.Links(
        {t: ends[:, mask] for t, mask in masks.items()},
        negatives={t: negatives[mask] for t, mask in masks.items()},
        relations=None if types else {ONE: relations},
    )
    sampler = khop.LinkSampler(
        graph, [-1] * layers, negatives=khop.GivenNegatives("triplet"), edge_ids=not types
    )
    columns = {"entity": ["x"], **({} if types else {ONE: ["r"]})}
    return khop.Loader(sampler, links, 1024, columns=columns).batch(0, 0)


def seconds(steps: dict[str, Callable[[], None]], rounds: int) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {name: [] for name in steps}
    for number in range(rounds + 1):
        for name, step in steps.items():
            begun = time.process_time()
            step()
            if number:  # the first step allocates
                found[name].append(time.process_time() - begun)
    return found


def step_of(model: LinkPredictor, batch: Batch) -> Callable[[], None]:
    optimizer, task = torch.optim.Adam(model.parameters()), LinkPrediction("bce")

    def step() -> None:
        loss = batch.global_mean(task.losses(model(batch), batch))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--layers", type=int, default=1)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as home:
        one, many, types = graphs(home)
        of_one, of_many = batches(one, [], given.layers), batches(many, types, given.layers)
        asked = list(of_many.links)
        shape = (WIDTH, given.layers, ["entity"], "x")
        sizes = {"outputs": WIDTH, "bases": 8}
        column = RelationColumn("r", {ONE: 2 * RELATIONS})
        decoders = {ONE: 2 * RELATIONS}
        rows = {
            "column": (LinkPredictor.of(Rows(), [ONE], "distmult", WIDTH, decoders), of_one),
            "types": (LinkPredictor.of(Rows(), types, "distmult", WIDTH), of_many),
            "one by one": (LinkPredictor(Rows(), {t: khop.models.DistMult(WIDTH) for t in asked}), of_many),
        }
        layers = {
            "column": (RGCN.for_graph(one, *shape, relations=column, **sizes), of_one),
            "types": (RGCN.for_graph(many, *shape, **sizes), of_many),
            "one by one": (OneByOne.for_graph(many, *shape, **sizes), of_many),
        }
        sage = {
            "one type": (SAGE.for_graph(one, *shape, outputs=WIDTH), of_one),
            "types": (SAGE.for_graph(many, *shape, outputs=WIDTH), of_many),
        }
        mlp = {
            "one type": (LinkPredictor.of(Rows(), [ONE], "mlp", WIDTH), of_one),
            "types": (LinkPredictor.of(Rows(), asked, "mlp", WIDTH), of_many),
        }
        figures = []
        for what, models in (("decoder", rows), ("R-GCN", layers), ("SAGE", sage), ("MLP decoder", mlp)):
            steps = {}
            for name, (model, batch) in models.items():
                if not isinstance(model, LinkPredictor):
                    of_types = (types, {}) if batch is of_many else ([ONE], decoders)
                    model = LinkPredictor.of(model, of_types[0], "distmult", WIDTH, of_types[1])
                steps[name] = step_of(model, batch)
            found = seconds(steps, given.rounds)
            for name, times in found.items():
                milliseconds = round(1e3 * median(times), 1)
                figures.append(Figure(f"{what}, {name}: processor time of a step", milliseconds, "ms"))
            for over in (name for name in found if name != "types"):
                ratios = sorted(a / b for a, b in zip(found["types"], found[over], strict=True))
                spread = (round(ratios[0], 2), round(ratios[-1], 2))
                ratio = round(median(ratios), 2)
                figures.append(Figure(f"{what}: 474 edge types over {over}", ratio, "x", spread=spread))
    report("relations", figures)


if __name__ == "__main__":
    main()
