"""Outputs of trained models for nodes and links, exact or sampled, in memory or in files; their scores."""
