"""Write benchmarks/results/README.md, the table of docs/planning.md and the charts from the JSON files.

usage: python benchmarks/table.py
"""

from __future__ import annotations

import json
from typing import Any

from harness import RESULTS, ROOT
from performance_plot import draw, draw_times

PAGE = RESULTS / "README.md"
PLAN_PAGE = ROOT / "docs" / "planning.md"
PLOT, README_PLOT = ROOT / "docs" / "performance.png", ROOT / "docs" / "speed.png"
TITLES = {
    "sampling": "Sampling",
    "loader": "Loader: sample, features, labels",
    "seed_tables": "Seed tables",
    "train_step": "Training step",
    "build": "Making and opening a graph folder",
    "gather": "Gather",
    "larger_than_memory": "Graphs larger than memory",
    "memory": "Memory",
    "scaling": "Cost of a sampled edge",
    "typed": "Typed graphs",
    "rules": "Weights and time",
    "links": "Links",
    "partition": "Partitioning",
    "caches": "Caches of remote rows",
    "cache_bounds": "Lower bounds for caches of remote rows",
    "propagate": "Propagated columns",
    "evaluation": "Evaluation on several processes",
    "pyg_loader": "khop.pyg",
    "processes": "Many processes",
    "worker": "Ranks of a partitioned graph",
    "lanes": "Batches in flight",
    "learned_rows": "Embeddings",
}
HEAD = """# Measurements

All figures of the benchmarks that [performance](../../docs/performance.md) summarizes.
`python benchmarks/table.py` writes this page from the JSON files of this folder."""

# ms per batch of [15,10,5] and [25,10], subgraph expansion, one thread, int64; DGL in the same recorded run.
RECORDED = {"[15,10,5]": {"pyg-lib": 134.0, "dgl": 116.0}, "[25,10]": {"pyg-lib": 30.0, "dgl": 17.0}}
Result = dict[str, Any]


def results() -> dict[str, Result]:
    """Every kept result of the page, by the name of its benchmark."""
    files = {name: RESULTS / f"{name}.json" for name in TITLES}
    return {name: json.loads(file.read_text()) for name, file in files.items() if file.exists()}


def table(name: str, result: Result) -> str:
    """One benchmark as a Markdown table, with its machine and its command."""
    facts = result["machine"]
    machine = f"{facts['cores']} cores of {facts['processor']}, {facts['memory_gib']} GiB"
    head = f"`python benchmarks/{name}.py` on {machine}"
    lines = [head, "", "| figure | median | quartiles | unit | khop is faster by |", "|---|--:|--:|---|--:|"]
    for figure in result["figures"]:
        spread = "" if figure["spread"] is None else " to ".join(f"{value:g}" for value in figure["spread"])
        ratio = "" if figure["ratio"] is None else f"{figure['ratio']:.2f} x"
        lines.append(f"| {figure['figure']} | {figure['value']:g} | {spread} | {figure['unit']} | {ratio} |")
    return "\n".join(lines)


def pyg_lib(sampling: Result) -> str:
    """pyg-lib's recorded time, scaled by how fast DGL was here and there, beside khop's time here."""
    values = {figure["figure"]: figure["value"] for figure in sampling["figures"]}
    lines = [
        "| fanouts | pyg-lib recorded | scaled by DGL | khop | khop is faster by |",
        "|---|--:|--:|--:|--:|",
    ]
    for fanouts, recorded in RECORDED.items():
        dgl = values[f"sampling {fanouts} layered (dgl)"]
        own = values[f"sampling {fanouts} subgraph"]
        scaled = recorded["pyg-lib"] * dgl / recorded["dgl"]
        lines.append(
            f"| {fanouts} | {recorded['pyg-lib']:g} ms | {scaled:.0f} ms | {own:.1f} ms "
            f"| {scaled / own:.0f} x |"
        )
    return "\n".join(lines)


def planning(result: Result) -> str:
    """What `khop plan` says over what runs took, a line for each run."""
    shown = {
        "memory": "memory",
        "rows of others": "remote rows per batch",
        "rows fetched": "fetched rows per batch",
        "bytes sent for a batch": "bytes sent per batch",
        "step": "step time",
    }
    lines = [
        f"| link, placement, cache | {' | '.join(shown.values())} | measured step time "
        "| measured bottleneck | planned bottleneck |",
        f"|---|{'--:|' * (len(shown) + 1)}---|---|",
    ]
    runs: dict[str, dict[str, Any]] = {}
    for figure in result["figures"]:
        case, _, what = figure["figure"].partition(": ")
        runs.setdefault(case, {})[what] = figure
    for case, of_run in runs.items():
        ratios = [f"{of_run[what]['notes']['plan'] / of_run[what]['value']:.2f}" for what in shown]
        took, notes = of_run["step"]["value"], of_run["step"]["notes"]
        told = f"{took:.0f} ms | {notes['bottleneck']} | {notes['planned bottleneck']}"
        lines.append(f"| {case} | {' | '.join(ratios)} | {told} |")
    return "\n".join(lines)


def filled(page: str, name: str, text: str) -> str:
    """The page with `text` between the markers of `name`."""
    begin, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
    before, found, rest = page.partition(begin)
    _, closed, after = rest.partition(end)
    if not (found and closed):
        raise SystemExit(f"no markers {begin} and {end}")
    return f"{before}{begin}\n{text}\n{end}{after}"


def main() -> None:
    found = results()
    sections = [f"## {TITLES[name]}\n\n{table(name, result)}" for name, result in found.items()]
    if "sampling" in found:
        sections.append(f"## pyg-lib\n\n{pyg_lib(found['sampling'])}")
    PAGE.write_text("\n\n".join([HEAD, *sections]) + "\n")
    draw(found, PLOT)
    draw_times(found, README_PLOT)
    if (kept := RESULTS / "planning.json").exists():
        text = planning(json.loads(kept.read_text()))
        PLAN_PAGE.write_text(filled(PLAN_PAGE.read_text(), "planning", text))


if __name__ == "__main__":
    main()
