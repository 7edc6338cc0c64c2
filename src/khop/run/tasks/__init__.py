"""The tasks of runs: over nodes, edges and links."""
