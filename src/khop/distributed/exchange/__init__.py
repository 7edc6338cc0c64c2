"""Exchange between ranks: connections, lanes, messages and their formats.

Internal: its names may change in any version. The public ones are in `khop.__all__`.
"""
