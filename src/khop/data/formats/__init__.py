"""Standard sets: graphs that others publish, read in their published layouts."""
