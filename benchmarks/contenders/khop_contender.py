"""khop's side of the benchmarks."""

from __future__ import annotations

import itertools
import shutil
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

sys.path.insert(0, str(Path(__file__).parent))
from answering import Answer, PeakMemory, answer_tasks, mean_ms, median_ms, peak_rss_mib

import khop
from khop.draw import DrawKey, Purpose
from khop.process_tuning import tune_memory


def opened(settings: dict[str, Any]) -> khop.Graph:
    return khop.open_graph(Path(settings["graph"]) / "graph")


def sampler_of(graph: khop.Graph, settings: dict[str, Any]) -> khop.NeighborSampler:
    expansion = khop.Expansion(settings.get("expansion", "layered"))
    return khop.NeighborSampler(
        graph,
        settings["fanouts"],
        rule=getattr(khop, settings.get("rule", "Uniform"))(**settings.get("rule_options", {})),
        expansion=expansion,
        edge_ids=settings.get("edge_ids", False),
    )


def seeds_of(graph: khop.Graph, settings: dict[str, Any], step: int) -> khop.Seeds:
    train = graph.split("train")["node"]
    size = settings["batch_size"]
    generator = torch.Generator().manual_seed(step)
    chosen = torch.randint(train.numel(), (size,), generator=generator)
    return khop.Seeds({"node": train[chosen]}, {"node": torch.arange(size)})


def counts_of(sample: Any) -> dict[str, int]:
    if sample.subgraph is not None:
        edges = sum(sum(per_hop) for per_hop in sample.subgraph.edges_per_hop.values())
    else:
        edges = sum(a.indices.numel() for block in sample.blocks for a in block.adjacencies.values())
    return {"nodes": sample.nodes["node"].numel(), "edges": edges}


def sampling(settings: dict[str, Any]) -> Answer:
    """Median ms per batch of one thread."""
    torch.set_num_threads(1)
    graph = opened(settings)
    sampler = sampler_of(graph, settings)
    count = settings["batches"]
    seeds = [seeds_of(graph, settings, step) for step in range(count + 2)]

    def one(step: int) -> Any:
        return sampler.sample(seeds[step], DrawKey.of(0, Purpose.HOP, 0, step))

    value, sample = median_ms(one, count)
    return {"value": value, "unit": "ms/batch", **counts_of(sample), "threads": 1}


def shared_sampling(settings: dict[str, Any]) -> Answer:
    """ms per batch when `threads` threads share the batches, claiming one after another."""
    torch.set_num_threads(1)
    graph = opened(settings)
    sampler = sampler_of(graph, settings)
    count, threads = settings["batches"], settings["threads"]
    seeds = [seeds_of(graph, settings, step) for step in range(count)]

    def work(steps: Iterator[int]) -> None:
        kept: deque[Any] = deque(maxlen=4)  # as many as a loader keeps
        for step in steps:
            if step >= count:
                return
            kept.append(sampler.sample(seeds[step], DrawKey.of(0, Purpose.HOP, 0, step)))

    def seconds() -> float:
        steps = itertools.count()
        workers = [threading.Thread(target=work, args=(steps,)) for _ in range(threads)]
        started = time.perf_counter()
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        return time.perf_counter() - started

    seconds()
    return {"value": 1e3 * seconds() / count, "unit": "ms/batch", "threads": threads}


def loader_of(graph: khop.Graph, settings: dict[str, Any]) -> khop.Loader:
    return khop.Loader(
        sampler_of(graph, settings),
        seeds=graph.split("train"),
        batch_size=settings["batch_size"],
        shuffle=True,
        seed=settings.get("round", 0),
        columns=[settings.get("column", "x")],
        seed_columns=["y"],
        **{name: settings[name] for name in ("threads", "prefetch") if name in settings},
    )


def links(settings: dict[str, Any]) -> Answer:
    """ms per batch of links in steady state: a binary negative each, both ends' neighbors and features."""
    set_up_process(settings)
    graph = opened(settings)
    folder = Path(settings["graph"])
    chosen = np.load(folder / "seeds.npy")
    ends = np.stack([np.load(folder / f"{end}.npy", mmap_mode="r")[chosen] for end in ("users", "items")])
    sampler = khop.LinkSampler(
        graph,
        settings["fanouts"],
        negatives=khop.UniformNegatives(per_positive=1, exact=settings.get("exact", False)),
        exclude=settings.get("exclude"),
        expansion=khop.Expansion(settings.get("expansion", "layered")),
    )
    seeds = khop.Links({("user", "buys", "item"): torch.from_numpy(ends).long()})
    loader = khop.Loader(
        sampler, seeds, settings["batch_size"], shuffle=True, seed=settings.get("round", 0), columns=["x"]
    )
    nodes = sum(ids.numel() for ids in loader.batch(0, 0).sample.nodes.values())
    batches = loader.epoch(0)
    value = mean_ms(batches, settings["batches"])
    batches.close()
    return {"value": value, "unit": "ms/batch", "nodes": nodes, "peak_rss_mib": peak_rss_mib()}


def set_up_process(settings: dict[str, Any]) -> None:
    """What the command does for its users, who else would do it by a line of their own."""
    if settings.get("tuned", True):
        tune_memory()
    if "compute_threads" in settings:
        torch.set_num_threads(settings["compute_threads"])


def loader(settings: dict[str, Any]) -> Answer:
    """ms per batch of a loader in steady state: sample, features and labels."""
    set_up_process(settings)
    batches = loader_of(opened(settings), settings).epoch(0)
    value = mean_ms(batches, settings["batches"])
    batches.close()  # type: ignore[attr-defined]
    return {"value": value, "unit": "ms/batch", "peak_rss_mib": peak_rss_mib()}


def train_step(settings: dict[str, Any]) -> Answer:
    """ms per batch of training: loading included, or on batches that were made before (`ready`)."""
    set_up_process(settings)
    torch.manual_seed(0)
    graph = opened(settings)
    model = khop.models.SAGE.for_graph(graph, hidden=256, layers=3)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    batches = loader_of(graph, settings).epoch(0)
    if settings.get("ready"):
        kept = list(itertools.islice(batches, 8))
        batches.close()  # type: ignore[attr-defined]
        batches = itertools.cycle(kept)
    half = settings.get("precision") == "bfloat16"

    def steps() -> Any:
        for batch in batches:
            with torch.autocast("cpu", torch.bfloat16, enabled=half):
                losses = F.cross_entropy(model(batch), batch.seed_column("y"), reduction="none")
            loss = batch.global_mean(losses.float())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            yield float(loss.detach())

    running = steps()
    value = mean_ms(running, settings["batches"])
    running.close()
    return {"value": value, "unit": "ms/batch", "peak_rss_mib": peak_rss_mib()}


def set_up(settings: dict[str, Any]) -> Answer:
    """Seconds to write a folder from an unsorted int64 edge list in memory, and the peak of memory beyond
    it."""
    given = Path(settings["graph"])
    indptr, indices = np.load(given / "indptr.npy"), np.load(given / "indices.npy")
    destinations = np.repeat(np.arange(indptr.size - 1), np.diff(indptr))
    order = np.random.default_rng(0).permutation(indices.size)
    sources, destinations = indices[order], destinations[order]
    del order, indptr, indices
    x, y = np.load(given / "x.npy"), np.load(given / "y.npy")
    nodes = {"node": khop.NodeTable(columns={"x": x, "y": y})}
    edges = {("node", "to", "node"): khop.EdgeTable(sources, destinations)}
    folder = Path(settings["scratch"]) / f"graph-{settings['number']}"
    with PeakMemory() as peak:
        started = time.perf_counter()
        khop.write_graph(folder, nodes, edges, threads=2)
        seconds = time.perf_counter() - started
    size = sum(file.stat().st_size for file in folder.rglob("*.npy"))
    shutil.rmtree(folder)
    return {
        "value": seconds,
        "unit": "s",
        "peak_over_folder": peak.mib * 2**20 / size,
        "folder_mib": size / 2**20,
    }


def opening(settings: dict[str, Any]) -> Answer:
    """Milliseconds to open the folder, the first touch of a row included."""
    value, _ = median_ms(lambda _: opened(settings).split("train")["node"][0].item(), 20)
    return {"value": value, "unit": "ms"}


if __name__ == "__main__":
    answer_tasks(
        {
            task.__name__: task
            for task in (sampling, shared_sampling, loader, links, train_step, set_up, opening)
        }
    )
