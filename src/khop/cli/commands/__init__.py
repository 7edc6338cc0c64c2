"""Declarations of the commands: arguments, options and help.

These modules do not import torch, because help, completion and usage errors do not need it. A command imports
the module that does its work when it is called.
"""
