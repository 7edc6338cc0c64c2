"""Outputs of trained models for nodes and links, exact or sampled, in memory or in files; their scores.

Internal: its names may change in any version. The public ones are in `khop.__all__`.
"""
