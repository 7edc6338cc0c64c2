"""Batches on GPUs: placement, caches, streams, and batches with static shapes."""
