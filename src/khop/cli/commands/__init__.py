"""Commands as the parser sees them: arguments, options, help.

These modules do not import torch: help, completion and usage errors need none. A command imports the
module that does its work when it is called.
"""
