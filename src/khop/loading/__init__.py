"""Ordered batches from seeds, made ahead by threads or streams.

Internal: its names may change in any version. The public ones are in `khop.__all__`.
"""
