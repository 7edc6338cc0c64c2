"""A run as frozen, validated values, and everything that is built from them.

`values` says what can be set, `read` turns TOML and options into it, `resolve` compares it with a graph,
`build` makes it run.
"""
