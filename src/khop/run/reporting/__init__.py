"""Summaries of runs, and the page of `khop report`."""
