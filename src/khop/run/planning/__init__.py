"""Estimates of memory, traffic and time before a graph exists."""
