"""Servers that store a graph and make batches, and clients for them.

Internal: its names may change in any version. The public ones are in `khop.__all__`.
"""
