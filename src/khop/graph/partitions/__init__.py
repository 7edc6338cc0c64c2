"""Partitioned graphs on the reading side: the partition book, and the parts that a process opens."""
