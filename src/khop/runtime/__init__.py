"""Ranks: how processes are started, find each other, watch each other and end together."""
