"""Functions and classes of the public API for training scripts.

Internal: its names may change in any version. The public ones are in `khop.__all__`.
"""
