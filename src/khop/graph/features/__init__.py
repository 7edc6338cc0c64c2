"""Feature stores: the columns of nodes and edges."""
