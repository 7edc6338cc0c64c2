"""Rules: how neighbors are drawn, one value per file."""
