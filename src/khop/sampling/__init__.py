"""Samplers of blocks and subgraphs around seeds.

Internal: its names may change in any version. The public ones are in `khop.__all__`.
"""
