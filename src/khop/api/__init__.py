"""The functions and classes of a training script, one file for each.

Internal: its names may change in any version. The public ones are in `khop.__all__`.
"""
