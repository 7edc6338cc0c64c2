"""Servers that each store one part of a graph and query each other for hops and rows."""
