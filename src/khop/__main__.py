"""Entry point of `python -m khop`, which torchrun starts.

Internal: its names may change in any version. The public ones are in `khop.__all__`.
"""

from __future__ import annotations

from khop.cli.start import run

if __name__ == "__main__":
    run()
