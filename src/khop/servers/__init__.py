"""Servers that hold a graph and make batches, and clients that ask them.

Internal: its names may change in any version. The public ones are in `khop.__all__`.
"""
