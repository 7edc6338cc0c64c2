"""A run over a typed graph is made of what its config says, and trains and scores."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.typed_runs import prepared, write_tagged_shop


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tagged_shop(tmp_path_factory.mktemp("graphs") / "shop")


def test_a_node_type_without_the_column_has_to_be_decided_on(shop: Path) -> None:
    with pytest.raises(ValueError, match=r"its node type 'tag' has no column 'x'; give embedding=64"):
        prepared(shop)
