"""Keys of draws arrive with their epoch and step."""

from __future__ import annotations

import json

import pytest

from khop.draw import DrawKey, Purpose
from khop.servers.draw_keys import read_key, written_key
from khop.servers.json_fields import Document


def sent(fields: object) -> Document:
    """Return fields as they arrive."""
    return Document(json.loads(json.dumps(fields)), "request.key")


@pytest.mark.parametrize("key", [DrawKey((1 << 64) - 1), DrawKey.of(3, Purpose.HOP, 2, 7).plus(5)], ids=str)
def test_a_key_is_read_as_it_was_written(key: DrawKey) -> None:
    found = read_key(sent(written_key(key)))
    assert (found.value, found.of_epoch, found.step) == (key.value, key.of_epoch, key.step)
    assert found.at_step(4) == key.at_step(4)


@pytest.mark.parametrize("field", ["value", "of_epoch", "step"])
def test_a_field_that_is_no_number_of_64_bits_is_named(field: str) -> None:
    for wrong in (-1, "7", 1 << 64):
        with pytest.raises(ValueError, match=rf"request\.key\.{field}"):
            read_key(sent({**written_key(DrawKey.of(3, Purpose.HOP, 2, 7)), field: wrong}))
