"""Tasks of runs: over nodes, edges and links."""
