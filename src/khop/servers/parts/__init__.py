"""Servers that have one part of a graph each, and ask each other for hops and rows of the other parts."""
