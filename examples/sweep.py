"""Tune a run with Optuna: each trial is one `khop train --json`, whose last line is its scores.

    python examples/sweep.py run.toml --metric val_accuracy --trials 20 [--storage sqlite:///sweep.db]

With a storage, several machines share a study, and a stopped sweep continues. Needs `pip install optuna`.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence

import optuna


def trained(run: str, options: Sequence[str], metric: str) -> float:
    """Train the run with these options; return a score of its best epoch."""
    command = [sys.executable, "-m", "khop", "train", run, *options, "--json"]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return float(json.loads(done.stdout.splitlines()[-1])[metric])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("run", help="run.toml, or a preset such as debian")
    parser.add_argument("--metric", default="val_accuracy")
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--storage", help="such as sqlite:///sweep.db")
    arguments = parser.parse_args()

    def objective(trial: optuna.Trial) -> float:
        options = [
            f"--lr={trial.suggest_float('lr', 1e-4, 3e-2, log=True)}",
            f"--hidden={trial.suggest_categorical('hidden', [16, 32, 64])}",
            f"--dropout={trial.suggest_float('dropout', 0.0, 0.6)}",
            f"--out=runs/trial-{trial.number}",
        ]
        return trained(arguments.run, options, arguments.metric)

    sampler = optuna.samplers.TPESampler(seed=0)
    study = optuna.create_study(
        study_name="khop",
        direction="maximize",
        sampler=sampler,
        storage=arguments.storage,
        load_if_exists=True,
    )
    study.optimize(objective, n_trials=arguments.trials)
    print(json.dumps({"best": study.best_value, **study.best_params}))


if __name__ == "__main__":
    main()
