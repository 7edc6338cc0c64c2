"""Graph stores, feature stores and batch sources of ranks that each have a part of a graph.

Internal: its names may change in any version. The public ones are in `khop.__all__`.
"""
