"""Exceptions of khop; other errors are ValueError (bad input) or OSError (the machine)."""

from __future__ import annotations

# The remedy for a file of a graph folder that differs from graph.json.
REMEDY = "the file was changed or damaged. Re-import, or copy it again"


class PeerLost(RuntimeError):
    """The peer of an exchange is gone: a rank, a thread or a machine did not answer in time."""


class Unsupported(ValueError):
    """A store or a sampler does not have the operation that was asked of it; the text names the remedy."""


class Terminated(KeyboardInterrupt):
    """SIGTERM was received: the process has to end. Code that handles Ctrl-C handles it too."""
