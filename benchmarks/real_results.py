"""Which scores do khop's models and tasks reach on real graphs, by the commands that users run?

Every result is the mean of several seeds of one `khop train ... --json`: GAT and GraphSAGE on amazon-photo
and tolokers (read from ../shared/data, left out if absent), every model on Debian's packages, Debian's links
with learned ids and BPR, and a recommender of dependencies: LightGCN over all and over sampled neighbors,
beside popularity, among the packages that anything depends on before the test links (the snapshot has no
times: links are split at random). The test score is that of the epoch that is best on validation.
Results are written after each seed. Other entries are kept, and an entry that was ended goes on with its next
seed.

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
from khop.api.edges import in_degrees
from khop.run.tasks.link_run_task import LinkTask

SHOP = ("dependent", "depends", "dependency")
RESULT = RESULTS / "real_results.json"
RANKED_USERS = 4_000
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
DEBIAN = "--hidden 128 --epochs 12 --batch-size 1024 --learning-rate 0.003 --schedule constant --dropout 0.5"
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
        f"{RECOMMENDER} --fanouts 10,10,10 --epochs 10 --patience 2 --evaluation-every 2",
        ("ndcg@20", "popularity_ndcg@20"),
    ),
    "recommender, lightgcn, all neighbors": Entry(
        "shop",
        f"{RECOMMENDER} --fanouts -1,-1,-1 --epochs 10 --patience 2 --evaluation-every 2",
        ("ndcg@20", "popularity_ndcg@20"),
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


@dataclass(frozen=True, eq=False)
class Candidates:
    """The packages that anything depends on before the test links: a recommender knows no others."""

    degrees: Tensor  # int64 (candidates), their dependents in training and validation
    items: Tensor  # int64 (candidates), ascending
    place: Tensor  # int64 (packages), -1 for the others

    @classmethod
    def of(cls, degrees: Tensor) -> Candidates:
        items = degrees.nonzero().squeeze(1)
        place = torch.full_like(degrees, -1)
        place[items] = torch.arange(items.numel())
        return cls(degrees[items], items, place)

    def of_links(self, links: Tensor) -> Tensor:
        """Return the links to candidates, with places of candidates as destinations."""
        placed = torch.stack([links[0], self.place[links[1]]])
        return placed[:, placed[1] >= 0]


def ranked(run: Path) -> Scores:
    """Rank the candidates for users of the test links, without those linked in training and validation.

    The users are the same RANKED_USERS for the model and for popularity, drawn by the seed of the benchmark.
    """
    task = khop.load_run(run).run.run_task
    assert isinstance(task, LinkTask)
    split, model = task.split, task.model
    before = [split.train_links, split.val_links]
    candidates = Candidates.of(in_degrees(split.test, SHOP, before))
    seen = candidates.of_links(torch.cat([links.edges[SHOP] for links in before], dim=1))
    held_out = candidates.of_links(split.test_links.edges[SHOP])
    users = held_out[0].unique()
    drawn = users[torch.randperm(users.numel(), generator=torch.Generator().manual_seed(0))[:RANKED_USERS]]
    held_out = held_out[:, torch.isin(held_out[0], drawn)]
    rows = khop.node_rows(
        model.encoder, split.test.topology, split.test.features, SHOP[::2], rule=khop.SymmetricSum()
    )
    items, popular = rows[SHOP[2]][candidates.items], candidates.degrees.float()

    def by_model(users: Tensor) -> Tensor:
        with torch.no_grad():
            return rows[SHOP[0]][users] @ items.T

    found: Scores = {}
    for name, scores_of in (("", by_model), ("popularity_", lambda users: popular.expand(users.numel(), -1))):
        ranking = khop.full_ranking(scores_of, held_out, seen, items.shape[0], at=[20])
        found |= {f"{name}full_ndcg_20": ranking.ndcg[20], f"{name}full_recall_20": ranking.recall[20]}
    return found | {"candidates": items.shape[0], "users": ranking.queries}


@dataclass(frozen=True)
class Bench:
    """The graphs of the entries, and the settings that no entry has."""

    data: Path
    graphs: Path
    threads: int

    def measured(self, entry: Entry, seed: int) -> Scores:
        """Return the scores of one seed."""
        place = self.graphs / entry.graph
        if entry.graph in GRAPHS and not place.exists():
            GRAPHS[entry.graph](self.data / entry.graph, place)
        given = ["--graph", str(place)] if entry.graph in GRAPHS else [entry.graph]
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder, "run")
            splits = (
                [f"--{of}-split={of}.{seed}" for of in ("train", "val", "test")] if entry.by_split else []
            )
            fixed = [f"--seed={seed}", f"--compute-threads={self.threads}", f"--out={out}", "--json"]
            result = trained(["khop", "train", *given, *shlex.split(entry.options), *splits, *fixed])
            names = [f"{split}_{score}" for split in ("val", "test") for score in entry.scores]
            own = {name: result[name] for name in (*names, "best_epoch", "epochs", "seconds")}
            return own | (ranked(out) if entry.graph == "shop" else {})


def command_of(entry: Entry) -> str:
    """Return the command of an entry as a user types it."""
    graph = ["--graph", entry.graph] if entry.graph in GRAPHS else [entry.graph]
    return shlex.join(["khop", "train", *graph, *shlex.split(entry.options), "--seed", "SEED"])


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
    found = json.loads(RESULT.read_text())["entries"] if RESULT.exists() else {}
    with tempfile.TemporaryDirectory() as graphs:
        bench = Bench(arguments.data, Path(graphs), arguments.threads)
        for name in arguments.only:
            entry = ENTRIES[name]
            if entry.graph in ("amazon-photo", "tolokers") and not (arguments.data / entry.graph).is_dir():
                print(f"{name}: left out, {arguments.data / entry.graph} is not there", file=sys.stderr)
                continue
            fixed = {"command": command_of(entry), "threads": arguments.threads, "entry": asdict(entry)}
            before = found.get(name, {"runs": []})
            is_same = all(before.get(key) == fixed[key] for key in ("command", "threads"))
            unfinished = is_same and len(before["runs"]) < arguments.seeds
            runs, loads = (before["runs"], before["load"]) if unfinished else ([], [])
            for seed in range(len(runs), arguments.seeds):
                runs.append(bench.measured(entry, seed))
                loads.append(round(os.getloadavg()[1], 1))
                print(f"{name}, seed {seed}: {runs[-1]}", file=sys.stderr, flush=True)
                found[name] = {**fixed, "load": loads, "summary": summary(runs), "runs": runs}
                text = json.dumps(
                    {"benchmark": "real_results", "machine": machine(), "entries": found}, indent=1
                )
                RESULT.write_text(text + "\n")
            print(json.dumps({name: found[name]["summary"]}), flush=True)


if __name__ == "__main__":
    main()
