"""Distributed runs: ranks, their rendezvous, the exchanges between them, and their common end."""
