"""Graphs included in khop, and graphs imported from data of other programs.

Internal: its names may change in any version. The public ones are in `khop.__all__`.
"""
