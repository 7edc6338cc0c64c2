"""Fail where lines or branches are covered less than a floor: coverage.py's own limit mixes the two."""

import json
import sys
from pathlib import Path


def main(report: str, floor: str) -> int:
    """The exit code for coverage.json `report` against `floor` per cent."""
    totals = json.loads(Path(report).read_text())["totals"]
    lines = 100 * totals["covered_lines"] / totals["num_statements"]
    branches = 100 * totals["covered_branches"] / totals["num_branches"]
    print(f"coverage: {lines:.1f} % of lines, {branches:.1f} % of branches (floor {floor} %)")
    return int(min(lines, branches) < float(floor))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
