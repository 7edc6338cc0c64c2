"""How much smaller are batches by LABOR-0, and how much sooner is a step done? Over neighbor sampling.

Layered [10,10,10], batch 1024, products-like graph. `sampling` is one thread; `training step` is that of
train_step.py: SAGE, 3 layers of 256, loading included. Rules take turns, round by round; a ratio is the
median of the rounds' ratios.

usage: python benchmarks/labor.py [--graph products] [--rounds 3] [--batches 10]
"""

from __future__ import annotations

from statistics import median

from common_arguments import parsed
from harness import Figure, contenders, report

RULES = {
    "uniform": {"rule": "Uniform"},
    "labor": {"rule": "Labor"},
    "labor, layer-dependent": {"rule": "Labor", "rule_options": {"layer_dependent": True}},
}
FANOUTS = [10, 10, 10]


def main() -> None:
    arguments = parsed(__doc__)
    base = {
        "graph": arguments.graph,
        "batch_size": 1024,
        "batches": arguments.batches,
        "fanouts": FANOUTS,
    }
    (khop,) = contenders([])
    figures: list[Figure] = []
    for task in ("sampling", "train_step"):
        rounds = [
            {name: khop.run(task, {**base, **rule, "round": number}) for name, rule in RULES.items()}
            for number in range(arguments.rounds)
        ]
        what = task.replace("train_step", "training step")
        for name in RULES:
            milliseconds = median(answers[name]["value"] for answers in rounds)
            ratio = median(answers[name]["value"] / answers["uniform"]["value"] for answers in rounds)
            figures.append(
                Figure(f"{what}, {name}", round(milliseconds, 2), "ms/batch", "uniform", round(ratio, 3))
            )
            if task == "sampling":
                nodes = median(answers[name]["nodes"] for answers in rounds)
                share = round(nodes / rounds[0]["uniform"]["nodes"], 3)
                figures.append(Figure(f"nodes, {name}", nodes, "nodes/batch", "uniform", share))
    khop.close()
    report("labor", figures)


if __name__ == "__main__":
    main()
