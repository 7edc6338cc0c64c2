"""Memory of the tensors that a value refers to."""

from __future__ import annotations

from functools import partial

from torch import Tensor


def tensor_bytes(value: object, seen: set[int]) -> dict[int, int]:
    """Return the bytes of each block of memory of the tensors that a value refers to, by address.

    Objects of khop, mappings and lists in memory, and partial functions are followed. `seen` has the
    identities of objects to skip, and gets those of the objects that are visited.
    """
    found: dict[int, int] = {}
    waiting = [value]
    while waiting:
        each = waiting.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        if isinstance(each, Tensor):
            storage = each.untyped_storage()
            found[storage.data_ptr()] = storage.nbytes()
        else:
            waiting += _referred(each)
    return found


def _referred(value: object) -> list[object]:
    match value:
        case dict():
            return list(value.values())
        case list() | tuple() | set() | frozenset():
            return list(value)
        case partial():
            return [value.func, *value.args, *value.keywords.values()]
    is_of_khop = type(value).__module__.partition(".")[0] == "khop"
    return list(vars(value).values()) if is_of_khop and hasattr(value, "__dict__") else []
