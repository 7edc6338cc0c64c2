"""Tests of servers and their clients."""
