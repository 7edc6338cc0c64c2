"""Write folders, batches, runs and checkpoints with one revision of khop, for `before_after.py`.

Renamed objects are found under either name. Everything is written below one folder: arrays and text as khop
writes them, and a digest of every tensor of every batch in `batches/*.json`.

usage: PYTHON benchmarks/revision_tasks.py FOLDER [--skip debian ranks runs]
"""

from __future__ import annotations

import argparse
import hashlib
import inspect
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import khop

USER, ITEM = "user", "item"
BUYS, BOUGHT, LIKES = (USER, "buys", ITEM), (ITEM, "bought_by", USER), (ITEM, "likes", ITEM)
STEPS = 4  # of each of two epochs
PARTS, PROCS = 3, 2
PLACEMENTS = ("features", "all", "whole")


def either(*names: str) -> Any:  # noqa: ANN401
    """The public object that has one of these names."""
    return next(getattr(khop, name) for name in names if hasattr(khop, name))


def disjoint_trees() -> dict[str, Any]:
    """The argument of samplers that gives each seed a tree."""
    is_earlier = "disjoint" in inspect.signature(khop.NeighborSampler).parameters
    return {"disjoint": True} if is_earlier else {"trees": "disjoint"}


def latest() -> Any:  # noqa: ANN401
    """The value of `Temporal` that takes the latest edges."""
    return either("TemporalStrategy", "Keep").LATEST


def rules() -> dict[str, Any]:
    """Every built-in rule, by a name for the table."""
    return {
        "uniform": khop.Uniform(),
        "with replacement": khop.Uniform(replacement=True),
        "weighted": khop.Weighted("weight"),
        "weighted, with replacement": khop.Weighted("weight", replacement=True),
        "temporal": khop.Temporal("time", window=(4000, -10)),
        "temporal, latest": khop.Temporal("time", latest()),
        "temporal, weighted": khop.Temporal("time", inner=khop.Weighted("weight")),
    }


def write_shop(path: Path) -> None:
    """Users and items: columns of several dtypes, times, weights, classes and splits."""
    generator = torch.Generator().manual_seed(5)
    users, items, purchases = 600, 400, 8000
    taste = torch.randint(users, (purchases,), generator=generator)
    bought = (taste % 7 + 7 * torch.randint(57, (purchases,), generator=generator)) % items
    times = torch.randint(10_000, (purchases,), generator=generator)
    weights = torch.rand(purchases, generator=generator)
    x = torch.randn(users, 12, generator=generator)
    order = torch.randperm(users, generator=generator)
    quantized = either("quantize", "quantise")(torch.randn(items, 12, generator=generator))
    khop.write_graph(
        path,
        {
            USER: khop.NodeTable(
                columns={
                    "x": x.bfloat16(),
                    "kind": torch.arange(users) % 7,
                    "time": torch.randint(5000, 10_000, (users,), generator=generator),
                },
                splits=dict(zip(("train", "val", "test"), order.split([400, 100, 100]), strict=True)),
                num_classes={"kind": 7},
            ),
            ITEM: khop.NodeTable(columns={"x": quantized, "price": torch.rand(items, generator=generator)}),
        },
        {
            BUYS: khop.EdgeTable(taste, bought, {"time": times, "weight": weights}),
            BOUGHT: khop.EdgeTable(bought, taste, {"time": times, "weight": weights}, reverse_of=BUYS),
            LIKES: khop.EdgeTable(bought[:900], bought[100:1000]),
        },
        sort_by="time",
    )


def digests(value: object, path: str = "") -> Iterator[tuple[str, str]]:
    """A line for every tensor and number within a value, with the names that lead there."""
    if isinstance(value, Tensor):
        tensor = value.detach().contiguous().reshape(-1)
        content = tensor.view(torch.uint8).numpy().tobytes() if tensor.numel() else b""
        yield path, f"{value.dtype} {tuple(value.shape)} {hashlib.sha256(content).hexdigest()[:24]}"
    elif is_dataclass(value):
        for field in fields(value):
            if field.name not in ("spans", "traffic"):
                yield from digests(getattr(value, field.name), f"{path}.{field.name}")
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from digests(item, f"{path}.{key if isinstance(key, str) else ' '.join(key)}")
    elif isinstance(value, list | tuple):
        for number, item in enumerate(value):
            yield from digests(item, f"{path}.{number}")
    elif value is not None:
        yield path, repr(value)


def epochs(loader: Any) -> Iterator[Any]:  # noqa: ANN401
    """The first steps of two epochs."""
    for epoch in range(2):
        for step, batch in enumerate(loader.epoch(epoch)):
            yield batch
            if step + 1 == STEPS:
                break


def of_batches(loader: Any) -> dict[str, str]:  # noqa: ANN401
    """Digests of every tensor of the batches, and what ranks have exchanged for them."""
    found: dict[str, str] = {}
    for batch in epochs(loader):
        place = f"{batch.epoch}/{batch.step}"
        found.update((f"{place}{path}", digest) for path, digest in digests(batch))
        found.update(
            (f"{place}.traffic.{name}", repr(n)) for name, n in batch.traffic.items() if name != "seconds"
        )
    return found


def node_loaders(graph: Any) -> Iterator[tuple[str, Any]]:  # noqa: ANN401
    """Loaders of nodes: rules, expansions, outputs, threads."""
    train = graph.split("train")

    def loader(rule: Any, given: Mapping[str, Any], **options: Any) -> Any:  # noqa: ANN401
        sampler = khop.NeighborSampler(graph, [5, 3], rule=rule, **given)
        times = "time" if isinstance(rule, khop.Temporal) else None
        options = {"columns": ["x"], "seed_columns": ["kind"], "threads": 2, **options}
        return khop.Loader(sampler, train, 64, shuffle=True, seed=3, seed_times=times, **options)

    for name, rule in rules().items():
        yield name, loader(rule, {"edge_ids": True})
        yield f"{name}, subgraph", loader(rule, {"expansion": "subgraph"})
    yield "disjoint", loader(khop.Uniform(), disjoint_trees())
    yield "all neighbors", khop.Loader(khop.NeighborSampler(graph, [-1, 2]), train, 50, columns=["x"])
    yield "induced", loader(khop.Uniform(), {"expansion": "subgraph", "output": "induced"})
    items = graph.only([LIKES])
    sampler = khop.NeighborSampler(items, [4, 3], expansion="subgraph", output="bidirectional")
    yield "bidirectional", khop.Loader(sampler, torch.arange(300), 50, shuffle=True)
    yield "columns as stored", loader(khop.Uniform(), {}, narrow="stored")
    edge_columns = {USER: ["x"], ITEM: ["x", "price"], BUYS: ["weight", "time"]}
    yield "edge columns", loader(khop.Uniform(), {"edge_ids": True}, columns=edge_columns)


def link_loaders(graph: Any) -> Iterator[tuple[str, Any]]:  # noqa: ANN401
    """Loaders of links: negatives, exclusion."""
    generator = torch.Generator().manual_seed(8)
    ends = torch.stack([torch.randint(n, (500,), generator=generator) for n in (600, 400)])
    links = khop.Links({BUYS: ends}, labels={BUYS: torch.rand(500, generator=generator)})
    given = {
        "no negatives": {},
        "uniform negatives": {"negatives": khop.UniformNegatives(2)},
        "exact negatives": {"negatives": khop.UniformNegatives(2, exact=True), "exclude": "edge+reverse"},
        "negatives by degree": {"negatives": khop.DegreeNegatives(3, exact=True), "exclude": "edge"},
        "triplets": {
            "negatives": khop.UniformNegatives(2, mode=khop.NegativeMode.TRIPLET),
            **disjoint_trees(),
        },
    }
    for name, options in given.items():
        sampler = khop.LinkSampler(graph, [4, 3], **options)
        used = khop.Links(links.edges) if "negatives" in options else links
        yield f"links, {name}", khop.Loader(sampler, used, 60, shuffle=True, seed=4, columns=["x"])


def write_digests(out: Path, name: str, loaders: Iterable[tuple[str, Any]]) -> None:
    """One file of digests for some loaders."""
    found = {case: of_batches(loader) for case, loader in loaders}
    out.mkdir(exist_ok=True)
    (out / f"{name}.json").write_text(json.dumps(found, indent=0))


def cached(graph: Any, by: str) -> Any:  # noqa: ANN401
    """A loader that caches remote rows."""
    sampler = khop.NeighborSampler(graph, [5, 3])
    loader = khop.Loader(sampler, graph.split("train"), 64, shuffle=True, columns=["x"], threads=1)
    method = "cache_features" if hasattr(loader, "cache_features") else "keep_rows"
    getattr(loader, method)(6000, by)
    return loader


def of_rank(rank: int, device: torch.device, parts: str, out: str) -> None:
    """Digests of this rank's batches of a partitioned graph, with every placement."""
    for placement in PLACEMENTS:
        graph = khop.open_graph(parts, placement=placement)

        def loaders(graph: Any = graph, placement: str = placement) -> Iterator[tuple[str, Any]]:  # noqa: ANN401
            yield from node_loaders(graph)
            yield from link_loaders(graph)
            if placement != "whole":
                yield "cache, counts", cached(graph, "counts")
            if placement == "features":
                yield "cache, visits", cached(graph, "visits")

        write_digests(Path(out), f"{placement}, rank {rank}", loaders())


RUN = """graph = "{graph}"
compute_threads = 1
threads = 1
task = {{ kind = "{task}", target = "{target}"{label} }}
sampler = {{ {sampler} }}
model = {{ {model} }}
training = {{ epochs = 2, batch_size = 64, learning_rate = 0.02 }}
{more}
"""
LINKS = 'links = { decoder = "dot", per_link = 2, exact = true, rivals = 5, val = 0.1, test = 0.1 }'
CACHE = "parts = { cache_bytes = 3000, device_bytes = 1000 }"
# run -> (graph, processes, task, sampler, model, further tables), with the names of keys before
RUNS = {
    "sage": ("shop", 1, "labels", "fanouts = [5, 3]", 'kind = "sage", hidden = 16, norm = "layer"', ""),
    "rgcn": ("shop", 1, "labels", "fanouts = [5, 3]", 'kind = "rgcn", hidden = 16, bases = 2', ""),
    "float64": ("shop", 1, "labels", "fanouts = [5, 3]", "hidden = 16", 'precision = "float64"'),
    "subgraph": ("shop", 1, "labels", 'fanouts = [5, 3], expansion = "subgraph"', "hidden = 16", ""),
    "weighted": (
        "shop",
        1,
        "labels",
        'fanouts = [5, 3], weight = "weight"',
        "hidden = 16, dropout = 0.0",
        "",
    ),
    "temporal": (
        "shop",
        1,
        "labels",
        'fanouts = [5, 3], time = "time", keep = "latest"',
        "hidden = 16",
        "evaluation = { fanouts = [5, 3] }",
    ),
    "links": ("shop", 1, "links", "fanouts = [5, 3]", 'hidden = 16, encoder = "linear"', LINKS),
    "ranks": ("parts", PROCS, "labels", "fanouts = [5, 3]", "hidden = 16", CACHE),
    "ranks, all": (
        "parts",
        PROCS,
        "labels",
        "fanouts = [5, 3]",
        "hidden = 16",
        'parts = {{ placement = "all" }}',
    ),
    "ranks, links": ("parts", PROCS, "links", "fanouts = [5, 3]", "hidden = 16", LINKS),
}


def run_files(out: Path) -> None:
    """Write the run files, train, evaluate and infer with the command."""
    for name, (graph, procs, task, sampler, model, more) in RUNS.items():
        is_links = task == "links"
        target, label = (" ".join(BUYS), "") if is_links else (USER, ', label = "kind"')
        kind = "link-prediction" if is_links else "node-classification"
        tables = more.replace("{{", "{").replace("}}", "}")
        top, tables = (tables, "") if tables.startswith("precision") else ("", tables)
        text = RUN.format(
            graph=out / graph,
            task=kind,
            target=target,
            label=label,
            sampler=sampler,
            model=model,
            more=tables,
        )
        file, run = out / "runs" / f"{name}.toml", out / "runs" / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(f"{top}\n{text}" if top else text)
        ranks = ["--procs", str(procs)] if procs > 1 else []
        khop_command("train", file, "--out", run, *ranks)
        scores = khop_command("evaluate", run, "--json").splitlines()[-1]
        (run / "scores.json").write_text(scores)
        if not is_links and "time" not in sampler:
            khop_command("infer", run, "--out", run / "rows.npy", "--node-type", USER)


def khop_command(*arguments: object) -> str:
    """What a command of this revision prints; its error ends this process."""
    environment = {**os.environ, "OMP_WAIT_POLICY": "passive"}
    done = subprocess.run(
        [sys.executable, "-m", "khop", *map(str, arguments)],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    if done.returncode:
        sys.exit(f"{khop.__file__}: khop {' '.join(map(str, arguments))}: {done.stderr}")
    return done.stdout


def debian_loaders() -> Iterator[tuple[str, Any]]:
    """Batches of the built-in typed graph."""
    graph = khop.open_graph(khop.builtin_folder("debian", Path(os.environ["KHOP_CACHE"])))
    train = graph.split("train")
    for name, given in (("layered", {}), ("subgraph", {"expansion": "subgraph", "edge_ids": True})):
        sampler = khop.NeighborSampler(graph, [10, 5], **given)
        yield name, khop.Loader(sampler, train, 256, shuffle=True, columns=["x"], threads=2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--skip", nargs="*", default=[], choices=["debian", "ranks", "runs"])
    given = parser.parse_args()
    out = given.folder.resolve()
    os.environ["KHOP_CACHE"] = str(out / "cache")
    torch.set_num_threads(1)
    write_shop(out / "shop")
    for method in ("ldg", "random"):
        khop.partition_graph(out / "shop", out / f"parts-{method}", PARTS, method=method, balance=["train"])
    khop.partition_graph(out / "shop", out / "parts", PARTS)
    batches = out / "batches"
    shop = khop.open_graph(out / "shop")
    write_digests(batches, "one process", node_loaders(shop))
    write_digests(batches, "links", link_loaders(shop))
    write_digests(batches, "parts of one process", node_loaders(khop.open_graph(out / "parts")))
    if "debian" not in given.skip:
        write_digests(batches, "debian", debian_loaders())
    if "ranks" not in given.skip:
        khop.launch(of_rank, procs=PROCS, arguments=(str(out / "parts"), str(batches)), device="cpu")
    if "runs" not in given.skip:
        run_files(out)


if __name__ == "__main__":
    main()
