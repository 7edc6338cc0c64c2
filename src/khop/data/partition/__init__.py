"""Partitioning of a graph: assignment of nodes, files of the parts, and the partition book."""
