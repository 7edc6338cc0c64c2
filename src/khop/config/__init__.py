"""The configuration of a run as frozen, validated values, and the objects built from it.

`values` defines all settings, `read` parses TOML and options, `resolve` checks a run against a graph,
and `build` makes the model, the loader and the trainer.

Internal: its names may change in any version. The public ones are in `khop.__all__`.
"""
