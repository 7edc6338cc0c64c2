"""Configuration of runs: read, validated, built, planned, profiled and reported.

Internal: its names may change in any version. The public ones are in `khop.__all__`.
"""
