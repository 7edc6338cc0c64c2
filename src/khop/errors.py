"""What khop raises of its own; all else is a ValueError (bad input) or an OSError (the machine)."""

from __future__ import annotations


class PeerLost(RuntimeError):
    """The other side of an exchange is gone: a rank, a thread or a machine did not answer in time."""


class Terminated(KeyboardInterrupt):
    """SIGTERM: whoever owns the machine wants it back. Whatever handles Ctrl-C handles it alike."""
