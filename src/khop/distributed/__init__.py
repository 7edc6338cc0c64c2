"""Graph stores, feature stores and batch sources for ranks that each store a part of a graph.

Internal: its names may change in any version. The public ones are in `khop.__all__`.
"""
