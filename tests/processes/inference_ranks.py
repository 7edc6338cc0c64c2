"""What ranks and single processes infer and measure of the same graphs, for the tests to compare."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
import torch
from torch import Tensor

import khop
from khop.distributed.processes.group import this_group
from khop.graph.store import CscGraph
from khop.inference import rows_on_device
from khop.inference.chunks import InferenceWork
from khop.inference.link_evaluation import end_rows, link_scores, sampled_link_scores
from khop.inference.node_outputs import ALL_NEIGHBORS, layerwise_inference, sampled_inference
from khop.inference.stages import ChunkLimits
from khop.kernels.choice import Engine, forcing
from khop.loading.columns import ColumnChoice
from khop.loading.device.device_placement import DevicePlacement
from khop.loading.device.placed_stores import Conditions, placed_stores
from khop.models import SAGE, LinkPredictor
from support.covered import covered
from support.host_as_device import HostAsDevice
from support.machine_folders import of_machine
from support.small_folders import ITEM
from support.small_link_folders import BUYS

CHUNK = 37  # nodes
NODES = torch.arange(179, -1, -3)  # in an order that no part has


@dataclass(frozen=True)
class Case:
    """A graph, and the type whose nodes are classified; of links there is none."""

    name: str
    parts: int
    method: str
    target: str | None
    label: str = ""


CASES = (
    Case("one-type", 3, "ldg", ITEM, "category"),
    Case("typed", 2, "random", "user", "age"),
    Case("links", 3, "hash", None),
)


def found(case: Case, graph: khop.Graph, out: Path) -> dict[str, Tensor]:
    """Everything that can be asked of a graph, by the ids that nodes had at first."""
    return _links(graph) if case.target is None else _nodes(case, graph, out)


def model_of(case: Case, graph: khop.Graph) -> SAGE:
    """The same weights everywhere."""
    with torch.random.fork_rng():
        torch.manual_seed(3)
        return SAGE.for_graph(graph, 8, 2, case.target, label=case.label, embedding=0).double()


def _nodes(case: Case, graph: khop.Graph, out: Path) -> dict[str, Tensor]:
    target, model, new = case.target, model_of(case, graph), new_ids(graph)
    assert target is not None
    nodes, sampler = new[target][NODES], khop.NeighborSampler(graph, [4, 3])
    ranks, columns = (
        {"group": this_group(), "lanes": graph.lanes},
        ColumnChoice.of(graph.schema, ["x"], (), ()),
    )
    task = khop.NodeClassification(target, case.label)
    rows = {
        "all": layerwise_inference(model, graph, graph.features, target, chunk_size=CHUNK, **ranks),
        "some": layerwise_inference(
            model, graph, graph.features, target, nodes=nodes, chunk_size=CHUNK, **ranks
        ),
        "none": layerwise_inference(model, graph, graph.features, target, nodes=nodes[:0], **ranks),
        "sampled": sampled_inference(
            model, sampler, graph.features, target,
            nodes=nodes, columns=columns, chunk_size=CHUNK, **ranks,
        ),
        "score": torch.tensor([khop.evaluate(model, graph, split="test", task=task)]),
    }  # fmt: skip
    rows["all"] = rows["all"][new[target]]
    for ending in ("npy", "parquet"):
        files = khop.infer(model, graph, out / f"{case.name}.{ending}", node_types=target, chunk_size=CHUNK)
    khop.infer(model, graph, out / f"{case.name}-some.npy", node_types=target, nodes=nodes, chunk_size=CHUNK)
    assert files == {target: out / f"{case.name}.parquet"}
    return rows


def _links(graph: khop.Graph) -> dict[str, Tensor]:
    random, new = torch.Generator().manual_seed(2), new_ids(graph)
    sources, destinations = (torch.randint(count, (61,), generator=random) for count in (120, 80))
    negatives = torch.randint(80, (61, 4), generator=random)
    links = khop.Links(
        {BUYS: torch.stack([new["user"][sources], new["item"][destinations]])},
        negatives={BUYS: new["item"][negatives]},
    )
    with torch.random.fork_rng():
        torch.manual_seed(4)
        encoder = SAGE.for_graph(graph, 8, 2, ["user", "item"], outputs=6, embedding=0)
        model = LinkPredictor.of(encoder, [BUYS], "mlp", 6).double()
    ranks, columns = (
        {"group": this_group(), "lanes": graph.lanes},
        ColumnChoice.of(graph.schema, ["x"], (), ()),
    )
    sampler = khop.LinkSampler(graph, [4, 3], negatives=khop.GivenNegatives(khop.NegativeMode.TRIPLET))
    work = InferenceWork(CHUNK, **ranks)
    rows, sharing = end_rows(model.encoder, graph, graph.features, links, work, ALL_NEIGHBORS)
    exact = link_scores(model, rows, links, sharing)
    sampled = sampled_link_scores(
        model,
        sampler,
        graph.features,
        links,
        columns,
        work,
    )
    rows = khop.node_rows(encoder, graph, graph.features, ["user", "item"], chunk_size=CHUNK, **ranks)
    metrics = khop.evaluate_links(model, graph, links, metrics=("mrr", "roc-auc", "average-precision"))
    return {
        "exact": torch.cat([exact[BUYS][0].unsqueeze(1), exact[BUYS][1]], dim=1),
        "sampled": torch.cat([sampled[BUYS][0].unsqueeze(1), sampled[BUYS][1]], dim=1),
        "user": rows["user"][new["user"]],
        "item": rows["item"][new["item"]],
        "score": torch.tensor(list(metrics.values())),
    }


def new_ids(graph: khop.Graph) -> dict[str, Tensor]:
    """Of each node as first numbered; the graphs that were cut have ids from 0."""
    counts = {t: graph.num_nodes(t) for t in graph.schema.node_types}
    return {
        t: torch.arange(count) if (ids := graph.original_ids(t)) is None else ids.argsort()
        for t, count in counts.items()
    }


def stopped_and_gone_on(case: Case, graph: khop.Graph, out: Path) -> list[int]:
    """Infer until a rank has its first chunk, and go on; what the second time says has been done."""
    model = model_of(case, graph)

    def stop(done: int, total: int) -> None:
        raise KeyboardInterrupt

    seen: list[int] = []
    for progress in (stop, lambda done, total: seen.append(done)):
        with suppress(KeyboardInterrupt):
            khop.infer(model, graph, out, node_types=case.target, chunk_size=CHUNK, progress=progress)
    return seen


@covered
def take_part(
    rank: int, device: torch.device, home: str, placement: str, cases: Sequence[Case] = CASES
) -> None:
    """Write down what this rank gets of each case, from a folder with what it needs and nothing else."""
    procs = this_group().world_size
    out, apart = Path(home, f"{placement}-{procs}"), Path(home, f"{placement}-{procs}-machine-{rank}")
    out.mkdir(exist_ok=True)
    apart.mkdir()
    for case in cases:
        own = of_machine(Path(home, f"{case.name}-parts"), placement, rank, procs)
        graph = khop.open_graph(own, placement=placement)
        rows = found(case, graph, out)
        np.savez(out / f"{case.name}-{rank}.npz", **{key: of.numpy() for key, of in rows.items()})
        if case.target is not None:
            told = [
                stopped_and_gone_on(case, graph, folder / f"{case.name}-stopped.npy")
                for folder in (out, apart)
            ]
            (out / f"{case.name}-{rank}.json").write_text(json.dumps(told))


def disagree(rank: int, device: torch.device, folder: str) -> None:
    """Compute rows with memory of a device on rank 1 only, and with different sizes of chunks."""
    graph, group = khop.open_graph(folder), this_group()
    model = model_of(CASES[0], graph)
    wanted = layerwise_inference(model, graph, graph.features, ITEM)
    assert isinstance(graph.topology, CscGraph)
    request = DevicePlacement.of("cuda", "device", "device")
    stores = placed_stores(graph.topology, graph.columns, request, HostAsDevice(), Conditions(is_mapped=True))
    placed, free = replace(graph, stores=stores), 1 << 40 if rank else 0
    limits = ChunkLimits(nodes=50, edges=1 << 20)
    with (
        patch.object(rows_on_device, "_free_bytes", lambda _: free),
        patch.object(rows_on_device, "LEAST", limits),
        forcing(Engine.TORCH),
    ):
        rows = layerwise_inference(model, placed, placed.features, ITEM, chunk_size=20, group=group)
    torch.testing.assert_close(rows, wanted)
    with pytest.raises(ValueError, match="give all ranks the same nodes, chunk_size and chunk_edges"):
        layerwise_inference(model, graph, graph.features, ITEM, chunk_size=20 + 10 * rank, group=group)
