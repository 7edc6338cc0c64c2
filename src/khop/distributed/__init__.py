"""Stores and sources of batches over ranks that hold parts of a graph."""
