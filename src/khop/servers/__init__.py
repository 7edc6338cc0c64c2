"""Servers that hold a graph and make batches, and clients that ask them."""
