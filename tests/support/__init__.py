"""Helpers of the tests."""

import os

os.environ["KHOP_LINEAR"] = "torch"  # for commands that tests start, whose environment modules here copy
os.fsync = lambda fd: None  # no file of a test has to outlive the machine, and a disk takes 5 ms each time
