"""Graphs that come with khop, and graphs made of what other programs keep."""
