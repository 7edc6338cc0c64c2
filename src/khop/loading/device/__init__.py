"""Batches on GPUs: placement of stores, caches, streams, and batches with static shapes."""
