"""What does importing khop cost, beside importing torch?

Each statement runs in new processes; the best of several is what the import itself costs once the files are
in the page cache. The promise: `from khop import *`, which loads all there is, under 1.5 x `import torch`.

    python benchmarks/import_time.py [--rounds 7]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time

STATEMENTS = ("import torch", "import khop", "from khop import *")
PROMISE = 1.5


def seconds(statement: str) -> float:
    """Wall time of one new interpreter that runs `statement`."""
    started = time.perf_counter()
    subprocess.run([sys.executable, "-c", statement], check=True)
    return time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=7)
    rounds = parser.parse_args().rounds
    # Interleaved, so that a busy moment of the machine meets all of them.
    taken = [[seconds(statement) for statement in STATEMENTS] for _ in range(rounds)]
    best = dict(zip(STATEMENTS, (min(times) for times in zip(*taken, strict=True)), strict=True))
    ratio = best["from khop import *"] / best["import torch"]
    print(json.dumps({"seconds": best, "ratio": ratio, "promise": PROMISE, "rounds": rounds}))
    sys.exit(ratio > PROMISE)


if __name__ == "__main__":
    main()
