"""Operations of the core: reference, native and GPU versions, and their choice.

Internal: its names may change in any version. The public ones are in `khop.__all__`.
"""
