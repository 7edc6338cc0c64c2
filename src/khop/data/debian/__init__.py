"""Graphs of Debian packages, from the package lists of a machine; docs/debian.md describes their contents."""
