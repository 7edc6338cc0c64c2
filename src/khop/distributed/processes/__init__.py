"""Processes of a run: launch, rendezvous, supervision and shutdown."""
