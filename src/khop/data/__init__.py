"""Built-in graphs, and imports of tables and of other programs' graphs.

Internal: its names may change in any version. The public ones are in `khop.__all__`.
"""
