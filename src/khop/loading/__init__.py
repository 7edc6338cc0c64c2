"""Data loading: batches in order, prefetched by threads or on a GPU's streams.

Internal: its names may change in any version. The public ones are in `khop.__all__`.
"""
