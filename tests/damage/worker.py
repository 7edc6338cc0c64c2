"""A process that runs trials of a range and says on stdout which it begins and what came of each."""

from __future__ import annotations

import json
import random
import sys
import tempfile
from pathlib import Path

import torch

from damage.folders import write_all
from damage.mutations import mutation
from damage.trial import Trials


def main() -> None:
    """Arguments: seed, first number, number after the last, targets."""
    seed, first, last = map(int, sys.argv[1:4])
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="khop-damage-") as folder:
        write_all(Path(folder) / "home")
        trials = Trials(Path(folder) / "home")
        for number in range(first, last):
            done = mutation(trials.files, seed, number, sys.argv[4:])
            _say(number=number, target=done.target, kind=done.kind, text=done.text)
            outcome, detail = trials.run(done, random.Random(f"{seed}/{number}/questions"))
            _say(outcome=outcome, detail=detail)


def _say(**what: object) -> None:
    print(json.dumps(what), flush=True)


if __name__ == "__main__":
    main()
