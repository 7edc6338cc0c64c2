"""The processes of a run: where each stands, how they meet, what they exchange and how they end together."""
