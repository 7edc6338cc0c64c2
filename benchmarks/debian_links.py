"""How well are a package's dependencies told from packages that it does not depend on?

MRR and ROC AUC of held-out dependencies, each against 100 packages drawn evenly among those that its source
does not depend on: of `khop train debian-links`, of the same model without its neighbors, of that with a dot
product on top, and of the number of packages that depend on one. A seed decides the split as well as the
weights; a model is taken at the epoch that is best on the validation links.

    python benchmarks/debian_links.py [--seeds 3]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch
from harness import Figure, report

import khop
from khop.training.metrics import Places, binary_roc_auc

DEPENDS = ("package", "depends", "package")
ALONE = ("--fanouts", '{"*" = 0},{"*" = 0}')
METRICS = ("mrr", "roc_auc")
Outcome = dict[str, float]


def trained(seed: int, cache: Path, out: Path, options: Sequence[str] = ()) -> Outcome:
    """`khop train debian-links`, as a user runs it."""
    command = [sys.executable, "-m", "khop", "train", "debian-links", *options]
    done = subprocess.run(
        [*command, "--seed", str(seed), "--out", str(out), "--json"],
        env={**os.environ, "KHOP_CACHE": str(cache)},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    result = json.loads(done.stdout.splitlines()[-1])
    wanted = (f"{split}_{metric}" for split in ("val", "test") for metric in METRICS)
    return {name: result[name] for name in (*wanted, "best_epoch", "seconds")}


def popularity(seed: int, cache: Path) -> Outcome:
    """A package scores as many as depend on it in the training graph."""
    graph = khop.open_graph(khop.builtin_folder("debian-typed", cache))
    split = khop.split_links(graph, DEPENDS, negatives=100, seed=seed)
    scores = split.train.csc(DEPENDS).indptr.diff().double()
    found: Outcome = {}
    for name, links in (("val", split.val_links), ("test", split.test_links)):
        assert links.negatives is not None
        own, others = scores[links.edges[DEPENDS][1]], scores[links.negatives[DEPENDS]]
        positive = torch.cat([torch.ones(own.numel()), torch.zeros(others.numel())])
        found[f"{name}_mrr"] = Places.of(own, others).mean_reciprocal_rank()
        found[f"{name}_roc_auc"] = binary_roc_auc(torch.cat([own, others.flatten()]), positive)
    return found


def figures(name: str, outcomes: Sequence[Outcome]) -> list[Figure]:
    """Mean of each metric on the test links, from the lowest seed to the highest."""
    found = []
    for metric in METRICS:
        tests = [outcome[f"test_{metric}"] for outcome in outcomes]
        stdev = round(statistics.stdev(tests), 4) if len(tests) > 1 else None
        spread = (round(min(tests), 4), round(max(tests), 4))
        notes = {"stdev": stdev, "runs": outcomes}
        unit = f"test {metric}, mean of {len(tests)}"
        found.append(Figure(name, round(statistics.mean(tests), 4), unit, spread=spread, notes=notes))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=3)
    seeds = range(parser.parse_args().seeds)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        cache = folder / "cache"
        graph = [trained(seed, cache, folder / f"graph-{seed}") for seed in seeds]
        words = [trained(seed, cache, folder / f"words-{seed}", ALONE) for seed in seeds]
        dot = (*ALONE, "--link-decoder", "dot")
        products = [trained(seed, cache, folder / f"dot-{seed}", dot) for seed in seeds]
        popular = [popularity(seed, cache) for seed in seeds]
    report(
        "debian_links",
        [
            *figures("popularity", popular),
            *figures("own words, inner product", products),
            *figures("own words, MLP", words),
            *figures("GraphSAGE, khop train debian-links", graph),
        ],
    )


if __name__ == "__main__":
    main()
