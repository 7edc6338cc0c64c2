"""Partitions of a graph: assignment, files, and the partition book.

Internal: its names may change in any version. The public ones are in `khop.__all__`.
"""
