"""The command `khop`.

Internal: its names may change in any version. The public ones are in `khop.__all__`.
"""
