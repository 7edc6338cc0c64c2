"""Helpers of the tests."""

import os

os.environ["KHOP_LINEAR"] = "torch"  # for commands that tests start, whose environment modules here copy
