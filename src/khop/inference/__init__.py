"""Outputs of trained models for nodes and links, exact or sampled, and their scores.

Internal: its names may change in any version. The public ones are in `khop.__all__`.
"""
