"""Graphs included in khop, and graphs imported from data of other programs."""
