"""Stores of the columns of nodes and edges.

Internal: its names may change in any version. The public ones are in `khop.__all__`.
"""
