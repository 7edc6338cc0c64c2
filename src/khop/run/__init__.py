"""A run as validated values: read, resolved, built, planned, profiled and reported.

Internal: its names may change in any version.
"""
