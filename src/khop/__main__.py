"""Entry point of `khop` and of `python -m khop`, which torchrun starts.

Internal: its names may change in any version. The public ones are in `khop.__all__`.
"""

from __future__ import annotations

import os

try:
    from importlib import import_module

    from khop.cli.interrupts import end_at_once
except KeyboardInterrupt:  # the first import takes as long as the start of Python
    os.write(2, b"khop: stopped\n")
    os._exit(130)


def main() -> None:
    """Run the command. Ctrl-C ends it without a traceback, also while modules load."""
    end_at_once()
    import_module("khop.cli.start").run()


if __name__ == "__main__":
    main()
