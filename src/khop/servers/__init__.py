"""Servers that store a graph and make batches, and their clients.

Internal: its names may change in any version. The public ones are in `khop.__all__`.
"""
