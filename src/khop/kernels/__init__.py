"""Kernels: each operation as reference in torch, native code and Triton, chosen by device.

Internal: its names may change in any version. The public ones are in `khop.__all__`.
"""
