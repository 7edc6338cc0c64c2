"""Partitioned graphs as they are read: the book, and the parts that a process holds."""
