"""Run tutorials and copy the pictures that they make to docs/tutorials.

`make test-all` runs the same pages, and compares their pictures with these.

usage: python scripts/make_tutorial_pictures.py [from-pyg from-dgl ...]
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))
from support.tutorials import TUTORIALS, original, pictures, run_tutorial  # noqa: E402


def main() -> None:
    """Run the tutorials that the arguments name, or all."""
    wanted = sys.argv[1:] or [page.stem for page in TUTORIALS]
    for page in TUTORIALS:
        if page.stem in wanted:
            with tempfile.TemporaryDirectory() as folder:
                os.chdir(folder)
                run_tutorial(page, Path(folder))
                for name in pictures(page):
                    shutil.copyfile(original(name, Path(folder)), page.with_name(name))
                    print(page.with_name(name).relative_to(ROOT), flush=True)
                os.chdir(ROOT)


if __name__ == "__main__":
    main()
