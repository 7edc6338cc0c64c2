"""Estimates of memory, traffic and time before a graph exists.

Internal: its names may change in any version. The public ones are in `khop.__all__`.
"""
