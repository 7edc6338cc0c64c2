"""Tables of users as graph folders: specs, readers, encoders, and the pipeline between them.

Internal: its names may change in any version. The public ones are in `khop.__all__`.
"""
