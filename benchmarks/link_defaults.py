"""Which dropout do links and labels need if a user names none? `khop train` on two real and two made sets.

Each run is one `khop train --json`, as a user starts it, with one of three rates of dropout. Links: Debian's
packages, amazon-photo (read from ../shared/data, left out if absent), and the made shop and citations of
examples/import. Labels: the same, with fraud instead of the shop. The score is that of the test split at the
epoch that is best on validation, beside the baseline of the summary.

    python benchmarks/link_defaults.py [--seeds 1] [--only labels]
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
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from accuracy import write_amazon_photo
from harness import RESULTS, ROOT, Figure, report

import khop

DATA = ROOT.parent / "shared" / "data" / "amazon-photo"
PRESETS = ("debian", "debian-links")
DROPOUTS = ("0", "0.2", "0.5")
SMALL = "--hidden 64 --lr 0.003"
LINKS = f"--task link-prediction --eval-negatives 20 --metric mrr {SMALL}"
RUNS = {  # by set: its graph, and options of khop train
    "links of debian": (
        "debian-links",
        f"{LINKS} --target 'package recommends package' --link-decoder dot --epochs 3 --batch-size 1024",
    ),
    "links of amazon-photo": (
        "photo-links",
        f"{LINKS} --target 'item with item' --fanouts 5,5 --epochs 2 --batch-size 4096",
    ),
    "links of amazon-photo, default epochs": (
        "photo-links",
        f"{LINKS} --target 'item with item' --fanouts 5,5 --batch-size 4096",
    ),
    "links of shop": ("shop", f"{LINKS} --target 'user buys item' --epochs 20 --batch-size 128"),
    "links of citations": ("citations", f"{LINKS} --target 'paper cites paper' --epochs 20 --batch-size 64"),
    "labels of debian": ("debian", f"--fanouts 5,5 --epochs 3 {SMALL}"),
    "labels of amazon-photo": ("photo", f"--fanouts 10,5 --epochs 10 --batch-size 512 {SMALL}"),
    "labels of amazon-photo, default size": ("photo", "--fanouts 10,5 --epochs 20 --batch-size 512"),
    "labels of citations": ("citations", f"--epochs 30 --batch-size 32 {SMALL}"),
    "labels of fraud": (
        "fraud",
        "--time time --fanouts 10,10 --embedding 16 --metric average-precision --epochs 8 --batch-size 64 "
        f"{SMALL}",
    ),
}
Outcome = dict[str, float]


def write_photo_links(path: Path) -> Path:
    """Write each pair of amazon-photo once, and turned around as its reverse."""
    parts = np.load(DATA / "amazon_photo.npz", allow_pickle=True)
    both = parts["adj_matrix"].item()
    sources, destinations = (both + both.T).nonzero()
    once = sources < destinations
    one, other = sources[once], destinations[once]
    nodes = khop.NodeTable(None, {"x": parts["node_attr"].item().toarray().astype(np.uint8)})
    forward = ("item", "with", "item")
    tables = {
        forward: khop.EdgeTable(one, other),
        ("item", "with-back", "item"): khop.EdgeTable(other, one, reverse_of=forward),
    }
    return khop.write_graph(path, {"item": nodes}, tables)


def write_graphs(folder: Path) -> dict[str, str]:
    """Write the graphs; return their paths by name."""
    found = {name: name for name in PRESETS}
    if DATA.is_dir():
        found["photo"] = str(write_amazon_photo(DATA, folder / "photo"))
        found["photo-links"] = str(write_photo_links(folder / "photo-links"))
    else:
        print(f"{DATA}: absent, amazon-photo is left out", file=sys.stderr)
    examples = ROOT / "examples" / "import"
    for name in ("shop", "citations", "fraud"):
        tables = folder / f"{name}-tables"
        tables.mkdir()
        subprocess.run([sys.executable, examples / "make_tables.py", name, tables], check=True)
        (tables / f"{name}.toml").write_text((examples / f"{name}.toml").read_text())
        spec, graph = str(tables / f"{name}.toml"), str(folder / name)
        subprocess.run([sys.executable, "-m", "khop", "import", spec, graph], check=True, stdout=sys.stderr)
        found[name] = graph
    return found


def trained(graph: str, options: Sequence[str], out: Path) -> Outcome:
    """Train as a user does."""
    run = [graph] if graph in PRESETS else ["--graph", graph]
    command = [sys.executable, "-m", "khop", "train", *run, *options, "--out", str(out), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{shlex.join(command)}\n{done.stderr}")
    found: Outcome = json.loads(done.stdout.splitlines()[-1])
    return found


def test_scores(outcome: Outcome, options: Sequence[str]) -> tuple[float, float]:
    """Return the score of the run's metric on the test split, and that of its baseline."""
    metric = options[options.index("--metric") + 1] if "--metric" in options else "accuracy"
    names = [name for name in outcome if name.startswith("test_") and name.endswith(metric.replace("-", "_"))]
    own = f"test_{metric.replace('-', '_')}"
    return outcome[own], max((outcome[name] for name in names if name != own), default=float("nan"))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--only", default="", help="sets whose name has this text; other figures are kept")
    given = parser.parse_args()
    seeds, load = given.seeds, os.getloadavg()[0]
    chosen = {name: run for name, run in RUNS.items() if given.only in name}
    before = json.loads((RESULTS / "link_defaults.json").read_text())["figures"] if given.only else []
    kept = [Figure(**one) for one in before if one["figure"].rpartition(",")[0] not in chosen]
    figures = []
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        graphs = write_graphs(folder)
        for name, (graph, text) in chosen.items():
            for dropout in DROPOUTS if graph in graphs else ():
                options = [*shlex.split(text), "--dropout", dropout]
                tests = []
                for seed in range(seeds):
                    out = folder / f"{name}-{dropout}-{seed}".replace(" ", "-")
                    tests.append(trained(graphs[graph], [*options, "--seed", str(seed)], out))
                scores, baselines = zip(*(test_scores(one, options) for one in tests), strict=True)
                notes = {
                    "baseline": round(statistics.mean(baselines), 4),
                    "scores": [round(score, 4) for score in scores],
                    "best_epochs": [one["best_epoch"] for one in tests],
                    "seconds": [one["seconds"] for one in tests],
                    "command": shlex.join(["khop", "train", "GRAPH", *options]),
                    "load": [round(load, 1), round(os.getloadavg()[0], 1)],
                }
                print(name, dropout, notes["scores"], notes["baseline"], notes["seconds"], file=sys.stderr)
                value = round(statistics.mean(scores), 4)
                figures.append(
                    Figure(f"{name}, dropout {dropout}", value, f"test score, mean of {seeds}", notes=notes)
                )
                report("link_defaults", [*kept, *figures])  # what is measured stays, if a later run ends


if __name__ == "__main__":
    main()
