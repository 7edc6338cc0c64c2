"""What ranks do with a folder of parts in the tests."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch.nn.parallel import DistributedDataParallel

import khop
from khop.batch import Batch
from khop.distributed.exchange.row_wire import Wire
from khop.distributed.owners import RankOwners
from khop.distributed.partitioned_features import PartitionedFeatures
from khop.distributed.partitioned_graph import PartitionedGraph
from khop.distributed.processes.group import this_group
from khop.graph.features.store import Rows
from khop.graph.folder import open_folder
from khop.graph.partitions.parts_folder import open_parts
from processes.ranks import Convolution, learnt
from support.covered import covered
from support.machine_folders import of_machine
from support.parts_as_whole import OldIds, assert_same

BATCH_SIZE = 84  # five steps
CACHE_BYTES = 748 + 100 * 16  # what finds the rows of 700 nodes, and 100 of them
STOPPED_AT = 3  # in the second epoch, of which the first iteration is left early


def loader_of(graph: khop.Graph, kept_by: str | None = None, device_cache_bytes: int = 0) -> khop.Loader:
    """Shuffled batches of three hops, with or without rows of others that are kept."""
    sampler = khop.NeighborSampler(graph, fanouts=[3, 3, 2], edge_ids=True)
    train = graph.split("train")
    loader = khop.Loader(sampler, train, BATCH_SIZE, shuffle=True, columns=["x"], seed_columns=["category"])
    if kept_by is not None:
        loader.cache_features(CACHE_BYTES, kept_by, device_cache_bytes=device_cache_bytes)
    return loader


def own_loop(
    graph: khop.Graph, kept_by: str | None = None, device_cache_bytes: int = 0, *, epochs: int = 2
) -> dict[str, object]:
    """A loop of a user's own over one epoch or two, the second one left early and taken up from a state.

    Before it every rank leaves an epoch, each after another number of batches.
    """
    loader = loader_of(graph, kept_by, device_cache_bytes)
    model = Convolution(layers=3).double()
    khop.initialize(model, loader, seed=3)
    parallel = DistributedDataParallel(model) if torch.distributed.is_initialized() else model
    optimizer = torch.optim.SGD(parallel.parameters(), lr=0.1)
    losses: list[float] = []
    originals: list[list[int]] = []
    traffic: list[dict[str, float]] = []

    def learn(batch: Batch) -> None:
        losses.append(learnt(parallel, optimizer, batch) / batch.num_global_seeds)
        seeds = batch.seeds
        originals.append((seeds if (ids := graph.original_ids("item")) is None else ids[seeds]).tolist())
        traffic.append(dict(batch.traffic))

    for batch in loader:
        if batch.step == this_group().rank:
            break
    for batch in loader:
        learn(batch)
    if epochs == 2:
        for batch in loader:
            learn(batch)
            if batch.step == STOPPED_AT - 1:
                break
        again = loader_of(graph, kept_by, device_cache_bytes)
        again.load_state_dict(json.loads(json.dumps(loader.state_dict())))
        for batch in again:
            learn(batch)
    return {"losses": losses, "seeds": originals, "traffic": traffic, "steps": len(loader)}


def seeds_of_one_part(folder: str) -> list[dict[str, float]]:
    """What batches cost whose seeds all lie in part 0: ranks that hold others take their share."""
    graph = khop.open_graph(folder)
    seeds = torch.arange(graph.partition_bounds("item")[1])
    sampler = khop.NeighborSampler(graph, fanouts=[3, 2])
    loader = khop.Loader(sampler, seeds, BATCH_SIZE, shuffle=True, columns=["x"])
    loader.cache_features(1 << 20, "visits")
    return [dict(batch.traffic) for batch in loader.epoch(0)]


def few_nodes(home: Path, name: str) -> list[float]:
    """Compare what is drawn and read of parts that mostly own nothing; what a model makes of each."""
    whole, scores = khop.open_graph(home / name), []
    ids = OldIds(open_folder(home / name), open_parts(home / f"{name}-5"))
    users = torch.arange(3)[this_group().rank :]
    for placement in ("features", "all"):
        graph = khop.open_graph(home / f"{name}-5", placement=placement)
        found, wanted = (
            khop.NeighborSampler(g, [2, -1], edge_ids=True).sample(
                khop.Seeds({"user": own}, {"user": users}), khop.DrawKey(3)
            )
            for g, own in ((graph, ids.new_nodes("user", users)), (whole, users))
        )
        assert_same(ids, found, wanted)
        if whole.schema.columns["user"]:
            rows = {"user": Rows(found.nodes["user"], ("x",)), "shop": Rows(torch.arange(0), ("x",))}
            gathered = graph.features.gather(rows)
            assert torch.equal(gathered["user"]["x"], whole.columns["user"]["x"][wanted.nodes["user"]])
            assert gathered["shop"]["x"].shape == (0, 2)
        scores += of_model(graph, whole)
    return [*scores, *of_model(whole, whole)]


def of_model(graph: khop.Graph, whole: khop.Graph) -> list[float]:
    """How good a model is, and what its row for the seed adds up to; without columns, how many seeds."""
    has_columns = bool(whole.schema.columns["user"])
    loader = khop.Loader(
        khop.NeighborSampler(graph, [2, 2]), graph.split("train"), 4, columns=["x"] if has_columns else []
    )
    loader.cache_features(1000, device_cache_bytes=1000)
    group = this_group()
    if not has_columns:
        return [float(group.gather(torch.tensor(batch.seeds.numel())).sum()) for batch in loader]
    with torch.random.fork_rng():
        torch.manual_seed(1)
        model = khop.models.SAGE.for_graph(whole, 4, 2, "user", label="age", embedding=0).double()
    score = khop.evaluate(model, graph, split="test", task=khop.NodeClassification("user", "age"))
    return [score, *(float(group.gather(model(batch).detach().sum()).sum()) for batch in loader)]


@covered
def worker(rank: int, device: torch.device, folders: list[str], out: str, given: khop.Graph) -> None:
    """The loop over each folder of parts, by each placement, and with rows of others kept.

    By each placement a rank has no files but those that it needs. The graph that was given is one of parts.
    """
    torch.set_num_threads(1)
    told = {"given": own_loop(given, epochs=1)}
    features = given.features
    assert isinstance(features, PartitionedFeatures)
    assert isinstance(given.topology, PartitionedGraph)
    assert isinstance(features.owners, RankOwners)
    assert (features.owners.lanes.count, features.wire) == (3, Wire.STORED)
    for folder in folders:
        for placement in ("features", "all", "whole"):
            own = of_machine(Path(folder), placement, rank, this_group().world_size)
            told[f"{Path(folder).name} {placement}"] = own_loop(khop.open_graph(own, placement=placement))
        for kept_by in ("visits", "counts"):
            kept = own_loop(khop.open_graph(folder), kept_by, epochs=1)
            told[f"{Path(folder).name} kept by {kept_by}"] = kept
    told["on the device"] = own_loop(khop.open_graph(folders[0]), "visits", CACHE_BYTES, epochs=1)
    in_parts = khop.open_graph(folders[0], placement="all")
    with pytest.raises(ValueError, match=r"edges of all parts.*use counts"):
        loader_of(in_parts, "visits")
    told["edges in parts"] = own_loop(in_parts, "auto", epochs=1)
    Path(out, f"{rank}.json").write_text(json.dumps(told))
    beside: dict[str, object] = {"seeds of one part": seeds_of_one_part(folders[0])}
    beside |= {name: few_nodes(Path(out), name) for name in ("tiny", "bare")}
    Path(out, f"{rank}-beside.json").write_text(json.dumps(beside))
