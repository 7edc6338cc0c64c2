"""Which scores do khop's models and tasks reach on real graphs, by the commands that users run?

Every result is the mean of several seeds of one `khop train ... --json`: GAT and GraphSAGE on amazon-photo
and tolokers (read from ../shared/data, left out if absent), every model on Debian's packages, Debian's links
with learned ids and BPR, and a recommender of dependencies: LightGCN over all and over sampled neighbors,
ranked among all packages beside popularity. The test score is that of the epoch that is best on validation.
Results are written after each entry; entries that are there already are kept.

    python benchmarks/real_results.py [--only NAME ...] [--seeds 3] [--threads 1]
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from accuracy import write_amazon_photo, write_tolokers
from harness import RESULTS, ROOT, machine
from torch import Tensor

import khop
from khop.api.in_degrees import in_degrees
from khop.config.link_run_task import LinkTask

SHOP = ("dependent", "depends", "dependency")
RESULT = RESULTS / "real_results.json"
Scores = dict[str, float]


@dataclass(frozen=True)
class Entry:
    """A command, and the scores to keep of it."""

    graph: str  # a name in GRAPHS, or a preset
    options: str  # of khop train
    scores: tuple[str, ...]
    by_split: bool = False  # seed n trains on the splits whose names end in .n


def shop(folder: Path) -> Path:
    """Debian's dependencies as interactions: a package is a user as dependent, and an item as dependency."""
    debian = khop.open_graph("debian-typed")
    edges = debian.csc(("package", "depends", "package"))
    items = torch.repeat_interleave(torch.arange(edges.indptr.numel() - 1), edges.indptr.diff())
    nodes = khop.NodeTable(debian.num_nodes("package"))
    reverse = ("dependency", "rev_depends", "dependent")
    links = khop.EdgeTable(edges.indices.long(), items)
    backwards = khop.EdgeTable(items, edges.indices.long(), reverse_of=SHOP)
    return khop.write_graph(folder, {SHOP[0]: nodes, SHOP[2]: nodes}, {SHOP: links, reverse: backwards})


GRAPHS: Mapping[str, Callable[[Path, Path], Path]] = {
    "amazon-photo": write_amazon_photo,
    "tolokers": write_tolokers,
    "shop": lambda data, folder: shop(folder),
}
PHOTO = "--label y --fanouts 10,10,10 --hidden 64 --dropout 0.5 --norm layer --residual --batch-size 512"
TOLOKERS = "--label y --metric roc-auc --fanouts 15,10 --hidden 128 --dropout 0.2 --norm layer --residual"
DEBIAN = "--hidden 128 --epochs 12"
RECOMMENDER = (
    f'--task link-prediction --target "{" ".join(SHOP)}" --model lightgcn --embedding 64 --hidden 64 '
    "--rule symmetric-sum --link-loss bpr --batch-size 8192 --lr 0.01 --metric ndcg@20 --eval-negatives 100 "
)
ENTRIES: Mapping[str, Entry] = {
    "amazon-photo, gat": Entry(
        "amazon-photo", f"--model gat {PHOTO} --epochs 40 --lr 0.003 --evaluation-every 2", ("accuracy",)
    ),
    "tolokers, gat": Entry(
        "tolokers",
        f"--model gat {TOLOKERS} --batch-size 512 --epochs 60 --evaluation-every 3",
        ("roc_auc",),
        True,
    ),
    "debian links, learned ids, bpr": Entry(
        "debian-links",
        "--embedding 64 --embedded-types all --link-loss bpr --negatives-per-positive 4",
        ("mrr", "roc_auc"),
    ),
    "recommender, lightgcn, sampled": Entry(
        "shop",
        f"{RECOMMENDER} --fanouts 10,10,10 --epochs 20 --patience 3 --evaluation-every 2",
        ("ndcg_20",),
    ),
    "recommender, lightgcn, all neighbors": Entry(
        "shop",
        f"{RECOMMENDER} --fanouts -1,-1,-1 --epochs 20 --patience 3 --evaluation-every 2",
        ("ndcg_20",),
    ),
    **{
        f"debian, {name}": Entry("debian", f"{options} {DEBIAN}", ("accuracy",))
        for name, options in {
            "sage": "--model sage",
            "gcn": "--model gcn --rule symmetric-sum",
            "gat": "--model gat",
            "gatv2": "--model gat --attention gatv2",
            "gin": "--model gin --rule sum",
            "rgcn": "--model rgcn",
            "hgt": "--model hgt",
        }.items()
    },
    "amazon-photo, sage": Entry(
        "amazon-photo", f"--model sage {PHOTO} --epochs 100 --lr 0.003 --evaluation-every 2", ("accuracy",)
    ),
    "tolokers, sage": Entry(
        "tolokers",
        f"--model sage {TOLOKERS} --batch-size 512 --epochs 100 --evaluation-every 2",
        ("roc_auc",),
        True,
    ),
}


def trained(command: Sequence[str]) -> dict[str, float]:
    """Run `khop train` as a user does, and return its last line."""
    done = subprocess.run(
        [sys.executable, "-m", *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        check=True,
    )
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def ranked(run: Path) -> Scores:
    """Rank all items for each user of the test links, without the items linked in training and validation."""
    loaded = khop.load_run(run).run
    task = loaded.run_task
    assert isinstance(task, LinkTask)
    split, model = task.split, task.model
    links = {name: of.edges[SHOP] for name, of in (("train", split.train_links), ("val", split.val_links))}
    held_out, seen = split.test_links.edges[SHOP], torch.cat(list(links.values()), dim=1)
    count = split.test.num_nodes(SHOP[2])
    rows = khop.node_rows(
        model.encoder, split.test.topology, split.test.features, SHOP[::2], rule=khop.SymmetricSum()
    )
    popular = in_degrees(split.test, SHOP, [split.train_links, split.val_links]).double()

    def by_model(users: Tensor) -> Tensor:
        with torch.no_grad():
            return rows[SHOP[0]][users] @ rows[SHOP[2]].T

    found: Scores = {}
    for name, scores_of in (("", by_model), ("popularity_", lambda users: popular.expand(users.numel(), -1))):
        ranking = khop.full_ranking(scores_of, held_out, seen, count, at=[20])
        found |= {f"{name}full_ndcg_20": ranking.ndcg[20], f"{name}full_recall_20": ranking.recall[20]}
    return found


def measured(entry: Entry, data: Path, graphs: Path, seeds: int, threads: int) -> tuple[str, list[Scores]]:
    """Return the command of an entry, and the scores of each seed."""
    graph = ["--graph", entry.graph] if entry.graph in GRAPHS else [entry.graph]
    command = ["khop", "train", *graph, *shlex.split(entry.options)]
    place = graphs / entry.graph
    if entry.graph in GRAPHS and not place.exists():
        GRAPHS[entry.graph](data / entry.graph, place)
    given = ["--graph", str(place)] if entry.graph in GRAPHS else [entry.graph]
    runs = []
    for seed in range(seeds):
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder, "run")
            splits = (
                [f"--{of}-split={of}.{seed}" for of in ("train", "val", "test")] if entry.by_split else []
            )
            fixed = ["--seed", str(seed), "--compute-threads", str(threads), "--out", str(out), "--json"]
            result = trained(["khop", "train", *given, *command[2 + len(graph) :], *splits, *fixed])
            names = [f"{split}_{score}" for split in ("val", "test") for score in entry.scores]
            own = {name: result[name] for name in (*names, "best_epoch", "epochs", "seconds")}
            runs.append(own | (ranked(out) if entry.graph == "shop" else {}))
            print(f"  {seed}: {runs[-1]}", file=sys.stderr, flush=True)
    return shlex.join([*command, "--seed", "SEED"]), runs


def summary(runs: Sequence[Scores]) -> dict[str, dict[str, float]]:
    """Return mean and standard deviation of each score."""
    return {
        name: {
            "mean": round(statistics.mean(run[name] for run in runs), 4),
            "stdev": round(statistics.stdev(run[name] for run in runs), 4) if len(runs) > 1 else 0.0,
        }
        for name in runs[0]
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", nargs="+", choices=ENTRIES, default=list(ENTRIES))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared" / "data")
    arguments = parser.parse_args()
    kept = json.loads(RESULT.read_text())["entries"] if RESULT.exists() else {}
    with tempfile.TemporaryDirectory() as graphs:
        for name in arguments.only:
            entry = ENTRIES[name]
            if entry.graph in ("amazon-photo", "tolokers") and not (arguments.data / entry.graph).is_dir():
                print(f"{name}: left out, {arguments.data / entry.graph} is not there", file=sys.stderr)
                continue
            print(name, file=sys.stderr, flush=True)
            load = os.getloadavg()[1]
            command, runs = measured(entry, arguments.data, Path(graphs), arguments.seeds, arguments.threads)
            kept[name] = {
                "command": command,
                "threads": arguments.threads,
                "load": [round(load, 1), round(os.getloadavg()[1], 1)],
                "summary": summary(runs),
                "runs": runs,
                "entry": asdict(entry),
            }
            RESULT.write_text(
                json.dumps({"benchmark": "real_results", "machine": machine(), "entries": kept}, indent=1)
                + "\n"
            )
            print(json.dumps({name: kept[name]["summary"]}), flush=True)


if __name__ == "__main__":
    main()
