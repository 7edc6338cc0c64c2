"""Stores and sources of batches over ranks that hold parts of a graph.

Internal: its names may change in any version. The public ones are in `khop.__all__`.
"""
