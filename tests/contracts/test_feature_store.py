"""Wrong feature stores are refused by what is wrong; a store with two members keeps the suite."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

from khop.graph.features.store import CachePlan, FeatureStore, FeatureStoreBase, Gathered, Tensors, Wanted
from khop.graph.features.table import FeatureTable
from khop.schema import Specs, Type
from khop.testing import feature_store as suite
from khop.testing.feature_store import PROMISES, Make
from khop.testing.promises import BrokenPromise, keep_all


@dataclass(frozen=True)
class Smallest(FeatureStoreBase):
    """A store of one's own with no more than it must have."""

    table: FeatureTable

    @property
    def specs(self) -> Specs:
        return self.table.specs

    def gather(self, wanted: Wanted) -> Gathered:
        return self.table.gather(wanted)


def test_a_store_with_two_members_keeps_the_suite() -> None:
    keep_all(PROMISES, lambda columns: Smallest(FeatureTable(columns)))


class SortsIds(Smallest):
    def gather(self, wanted: Wanted) -> Gathered:
        return self.table.gather({t: replace(of, ids=of.ids.sort().values) for t, of in wanted.items()})


class NoLimits(Smallest):
    def gather(self, wanted: Wanted) -> Gathered:
        return self.table.gather({t: replace(of, limits={}) for t, of in wanted.items()})


class AllAsFloat(Smallest):
    def gather(self, wanted: Wanted) -> Gathered:
        gathered = self.table.gather(wanted)
        return {t: {name: rows.float() for name, rows in of.items()} for t, of in gathered.items()}


class NothingWidened(Smallest):
    def gather(self, wanted: Wanted) -> Gathered:
        return self.table.gather({t: replace(of, as_float32=frozenset()) for t, of in wanted.items()})


BUFFER = torch.tensor([[6.0, 7.0, 8.0]] * 2)


class ReusesMemory(Smallest):
    """Rows of one column come in the same memory every time."""

    def gather(self, wanted: Wanted) -> Gathered:
        gathered = self.table.gather(wanted)
        if "user" in wanted and wanted["user"].ids.tolist() == [2, 2]:
            gathered["user"]["x"] = BUFFER
        return gathered


class WrapsIds(Smallest):
    """Negative ids count from the end, as in a list."""

    def gather(self, wanted: Wanted) -> Gathered:
        counts = {t: next(iter(of.values())).shape[0] for t, of in self.table.columns.items()}
        wrapped = {t: replace(of, ids=of.ids % counts[t]) if t in counts else of for t, of in wanted.items()}
        return self.table.gather(wrapped)


class WrongSpecs(Smallest):
    @property
    def specs(self) -> Specs:
        specs = {t: dict(of) for t, of in self.table.specs.items()}
        specs["user"]["age"] = replace(specs["user"]["age"], dtype="int64")
        return specs


class OtherDevice(Smallest):
    def output_device(self, type_: Type, column: str) -> torch.device:
        return torch.device("meta")


class FewLocalRows(Smallest):
    def local_rows(self, type_: Type) -> range:
        return range(2)


class ThreadsLoseColumns(Smallest):
    def with_threads(self, threads: int) -> FeatureStore:
        columns = {
            t: {name: column * 0 for name, column in of.items()} for t, of in self.table.columns.items()
        }
        return Smallest(FeatureTable(columns))


class StaleCache(Smallest):
    def cached(self, plan: CachePlan) -> FeatureStore:
        columns = {t: {n: c.flip(0) for n, c in of.items()} for t, of in self.table.columns.items()}
        return Smallest(FeatureTable(columns))


class HalfOfIt(Smallest):
    def whole_columns(self) -> Tensors:
        return {t: {n: c[: len(c) // 2] for n, c in of.items()} for t, of in self.table.columns.items()}


class DropsOld(Smallest):
    def with_columns(self, added: Tensors) -> FeatureStore:
        return Smallest(FeatureTable(added)) if added else self


class OneRowAtLeast(Smallest):
    """For no ids, the first row comes."""

    def gather(self, wanted: Wanted) -> Gathered:
        some = {t: of if of.ids.numel() else replace(of, ids=of.ids.new_zeros(1)) for t, of in wanted.items()}
        return self.table.gather(some)


class AllColumns(Smallest):
    def gather(self, wanted: Wanted) -> Gathered:
        named = {
            t: replace(of, columns=of.columns or tuple(self.specs[t])) if t in self.specs else of
            for t, of in wanted.items()
        }
        return self.table.gather(named)


class SortsInPlace(Smallest):
    def gather(self, wanted: Wanted) -> Gathered:
        gathered = self.table.gather(wanted)
        for of_type in wanted.values():
            of_type.ids.copy_(of_type.ids.sort().values)
        return gathered


INSIDE, LOCK = [0], threading.Lock()


class OneAtATime(Smallest):
    """A gather beside another one finds nothing."""

    def gather(self, wanted: Wanted) -> Gathered:
        with LOCK:
            INSIDE[0] += 1
            others = INSIDE[0] - 1
        time.sleep(0.001)
        gathered = self.table.gather(wanted)
        with LOCK:
            INSIDE[0] -= 1
        return {t: {n: c * 0 for n, c in of.items()} for t, of in gathered.items()} if others else gathered


class IgnoresUnknown(Smallest):
    """Columns that do not exist are left out."""

    def gather(self, wanted: Wanted) -> Gathered:
        known = {
            t: replace(of, columns=tuple(name for name in of.columns if name in self.specs[t]))
            for t, of in wanted.items()
            if t in self.specs
        }
        return self.table.gather(known)


class AddsNothing(Smallest):
    def with_columns(self, added: Tensors) -> FeatureStore:
        zeros = {t: {name: column * 0 for name, column in of.items()} for t, of in added.items()}
        return Smallest(FeatureTable({**self.table.columns, **zeros}))


class ChoosesNothing(Smallest):
    def choosing(self, chosen: dict[Type, Tensor]) -> FeatureStore:
        return self


WRONG: dict[type[Smallest], tuple[Callable[[Make], None], str]] = {
    SortsIds: (suite.rows_are_in_the_order_of_the_ids, "Gather rows in the order of the ids"),
    NoLimits: (suite.rows_are_in_the_order_of_the_ids, "shape of column"),
    AllAsFloat: (suite.rows_are_in_the_order_of_the_ids, "dtype of column"),
    NothingWidened: (
        suite.narrow_floats_are_converted_on_request,
        "Convert narrow floats in `as_float32` to float32",
    ),
    ReusesMemory: (suite.rows_belong_to_the_caller, "after the caller overwrote earlier rows"),
    WrapsIds: (suite.an_id_out_of_range_is_named, "row 4 of 4: no error was raised, must be a ValueError"),
    WrongSpecs: (suite.specs_state_dtype_and_shape, "dtypes and shapes in specs"),
    OtherDevice: (suite.rows_are_on_the_output_device, "device of column 'x' of 'user'"),
    FewLocalRows: (
        suite.local_rows_are_a_range_of_the_rows,
        "local_rows of 'user': range(0, 2), must be all 4 rows",
    ),
    ThreadsLoseColumns: (
        suite.numbers_of_threads_change_no_row,
        "rows of with_threads(1), column 'x' of 'user'",
    ),
    StaleCache: (suite.a_cache_changes_no_row, "rows of cached(plan)"),
    HalfOfIt: (suite.whole_columns_are_those_of_the_store, "shape of whole column 'x' of 'user'"),
    OneRowAtLeast: (suite.no_ids_give_no_rows, "shape of column 'x' of 'item' for no ids"),
    AllColumns: (suite.only_requested_columns_are_gathered, "gather of no column"),
    SortsInPlace: (suite.ids_do_not_change, "ids after the gather: [0, 3, 3], must be [3, 0, 3]"),
    OneAtATime: (suite.threads_share_it, "four threads gather other rows than one"),
    IgnoresUnknown: (suite.missing_columns_are_named, "type 'shop': no error was raised"),
    AddsNothing: (suite.added_columns_join_those_of_the_store, "with_columns"),
    ChoosesNothing: (suite.chosen_rows_are_numbered_from_zero, "choosing"),
}


@pytest.mark.core(6)
@pytest.mark.parametrize("kind", WRONG, ids=lambda kind: kind.__name__)
def test_a_wrong_store_is_refused_by_what_is_wrong(kind: type[Smallest], few_examples: None) -> None:
    promise, sentence = WRONG[kind]
    assert promise in PROMISES
    with pytest.raises(BrokenPromise, match=re.escape(sentence)):
        promise(lambda columns: kind(FeatureTable(columns)))


def test_a_store_that_fails_by_itself_is_refused() -> None:
    """The error is the store's own; a note names the promise."""
    with pytest.raises(ValueError, match="no columns of type 'user'") as caught:
        suite.added_columns_join_those_of_the_store(lambda columns: DropsOld(FeatureTable(columns)))
    assert any("The promise that was tested" in note for note in caught.value.__notes__)


def test_each_promise_has_a_wrong_store() -> None:
    assert {promise for promise, _ in WRONG.values()} == set(PROMISES)
