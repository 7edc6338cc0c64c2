"""Measurements of a profile, and the rules that name a bottleneck.

Internal: its names may change in any version. The public ones are in `khop.__all__`.
"""
