"""The change test: components written outside khop, each in a file of its own."""
