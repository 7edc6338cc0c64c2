"""`python support/program.py CODE ARGUMENT ...`: as `python -c CODE ARGUMENT ...`, but forked as a script is.

For programs that import khop or torch, and do not ask what is imported.
"""

from __future__ import annotations

import sys

if __name__ == "__main__":
    code = sys.argv.pop(1)
    sys.argv[0], sys.path[0] = "-c", ""
    exec(compile(code, "<string>", "exec"), {"__name__": "__main__", "__builtins__": __builtins__})
