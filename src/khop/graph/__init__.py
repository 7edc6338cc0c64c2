"""Graph folders, and stores of edges.

Internal: its names may change in any version. The public ones are in `khop.__all__`.
"""
