"""Few examples, not made smaller: a wrong implementation is wrong in most of them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import Phase, settings


@pytest.fixture
def few_examples() -> Iterator[None]:
    before = settings()
    phases = [Phase.explicit, Phase.generate]
    # The same examples in `make test-all` too: whether 50 random ones show a fault is chance.
    settings.register_profile("few", before, max_examples=50, derandomize=True, phases=phases)
    settings.load_profile("few")
    yield
    settings.register_profile("before few", before)
    settings.load_profile("before few")
