"""The command and a small graph, as for the tests of the command."""

from __future__ import annotations

from cli.conftest import khop_command as khop_command
from cli.conftest import learnable as learnable
