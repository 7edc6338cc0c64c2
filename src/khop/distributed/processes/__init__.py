"""Ranks: how processes are started, find each other, watch each other and end together.

Internal: its names may change in any version. The public ones are in `khop.__all__`.
"""
