"""Few examples, not made smaller: a wrong implementation is wrong in most of them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import Phase, settings


@pytest.fixture
def few_examples() -> Iterator[None]:
    before = settings()
    settings.register_profile("few", before, max_examples=20, phases=[Phase.explicit, Phase.generate])
    settings.load_profile("few")
    yield
    settings.register_profile("before few", before)
    settings.load_profile("before few")
