"""Exceptions of khop; other errors are ValueError (bad input) or OSError (the machine)."""

from __future__ import annotations


class PeerLost(RuntimeError):
    """The peer of an exchange is gone: a rank, a thread or a machine did not answer in time."""


class Terminated(KeyboardInterrupt):
    """SIGTERM was received: the process has to end. Code that handles Ctrl-C handles it too."""
