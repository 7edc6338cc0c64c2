"""`python -m khop` is the command `khop`; torchrun starts it this way."""

from __future__ import annotations

from khop.cli.start import run

if __name__ == "__main__":
    run()
