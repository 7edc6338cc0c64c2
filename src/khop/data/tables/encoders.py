"""Encoders of columns, fitted to the training rows, from specs and stored, and joined to features.

Text is encoded by feature hashing with random signs and IDF weights, or as sparse bags of words.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, lru_cache
from hashlib import blake2b
from itertools import pairwise
from typing import Any, Protocol, Self

import numpy as np
import numpy.typing as npt
import torch

from khop.data.tables import spec as specs
from khop.data.tables.packages import (
    TableFault,
    converted,
    is_text,
    numpy_of,
    pa,
    pc,
    refuse,
    refuse_null,
    shown,
    without_blanks,
)
from khop.data.tables.times import PER_SECOND, TimeFormat, finest, may_have_fractions, to_unit, unit_of
from khop.kernels.lazy_rows import packed
from khop.kernels.moments import Moments

Where = Callable[[int], str]  # describes the place of a row


@dataclass(frozen=True, eq=False)
class Encoded:
    """Numbers of some rows."""

    values: npt.NDArray[Any]  # float32 (rows, width); for words int32 (rows, 2, longest)
    unknown: int = 0  # rows with a category or word that is not in training rows


class ColumnEncoder(Protocol):
    """A column's encoding with its statistics. Implementers are frozen values; threads may share them."""

    @property
    def width(self) -> int:
        """Numbers per row."""
        ...

    def encode(self, array: Any, where: Where) -> Encoded:
        """Encode a pyarrow array; ValueError names the place of a row that cannot be encoded."""
        ...

    def state(self) -> Mapping[str, Any]:
        """Return settings and statistics as JSON values, from which the encoder can be restored."""
        ...


class StoredFields:
    """A dataclass whose state is its fields."""

    def state(self) -> Mapping[str, Any]:
        """Return settings and statistics as JSON values."""
        return asdict(self)  # type: ignore[call-overload, no-any-return]  # a dataclass

    @classmethod
    def of_state(cls, state: Mapping[str, Any]) -> Self:
        """Restore the value of a state."""
        return cls(**{name: tuple(v) if isinstance(v, list) else v for name, v in state.items()})


@dataclass(frozen=True)
class NumberEncoder(StoredFields):
    """Standardized numbers; nulls as the mean or zero, with an optional column that marks them."""

    key: str
    scale: str
    missing: str
    flag: str
    mean: float = 0.0
    std: float = 1.0

    @property
    def width(self) -> int:
        """Numbers per row."""
        return 2 if self.flag == "missing" else 1

    def encode(self, array: Any, where: Where) -> Encoded:
        """Encode numbers; ValueError for a null if those are refused."""
        numbers = scaled(array, self.scale, self.key, where)
        missing = np.isnan(numbers)
        if self.missing == "refuse":
            refuse(missing, where, f'{self.key} is null; give missing = "mean" or "zero"')
        zero = 0.0 if self.scale == "none" or self.missing == "mean" else -self.mean / self.std
        fill = self.mean if self.scale == "none" and self.missing == "mean" else zero
        values = numbers if self.scale == "none" else (numbers - self.mean) / self.std
        columns = [np.where(missing, fill, values), missing][: self.width]
        return Encoded(np.stack([as_float32(one, self.key, where, array) for one in columns], axis=1))


@dataclass
class NumberFitter:
    """Mean and standard deviation of numbers, exact for any grouping."""

    plain: NumberEncoder  # without statistics
    moments: Moments = field(default_factory=Moments)

    def add(self, array: Any, where: Where) -> None:
        """Add the values of training rows."""
        self.moments = self.moments.merged(Moments.of(scaled(array, self.plain.scale, self.plain.key, where)))

    def encoder(self) -> NumberEncoder:
        """Return the encoder; a constant column has deviation 1."""
        return replace(self.plain, mean=self.moments.mean(), std=self.moments.std() or 1.0)


@dataclass(frozen=True)
class BooleanEncoder(StoredFields):
    """Booleans as 0 and 1, with a second number that is 1 for null."""

    key: str
    true: tuple[str, ...] = ("true", "t", "yes", "1")
    false: tuple[str, ...] = ("false", "f", "no", "0")
    width: int = 2

    def add(self, array: Any, where: Where) -> None:
        """Ignore training rows, as a fitter without statistics."""

    def encoder(self) -> BooleanEncoder:
        """Return the encoder itself."""
        return self

    def encode(self, array: Any, where: Where) -> Encoded:
        """Encode booleans, numbers 0 and 1, or words such as yes and no."""
        null = numpy_of(array.is_null())
        if not pa.types.is_boolean(array.type):
            array = self._truths(array, where)
        true = numpy_of(pc.fill_null(array, False))
        return Encoded(np.stack([true, null], axis=1).astype(np.float32))

    def _truths(self, array: Any, where: Where) -> Any:
        reason = 'neither true nor false; give kind = "category", or words, as true = ["Y"] and false = ["N"]'
        words = converted(array, lambda part: part.cast(pa.string()), self.key, where, reason)
        words = pc.replace_substring_regex(pc.utf8_lower(words), r"\.0$", "")
        true, false = (pc.is_in(words, pa.array([*map(str.lower, of)])) for of in (self.true, self.false))
        wrong = numpy_of(pc.and_(words.is_valid(), pc.invert(pc.or_(true, false))))
        refuse(wrong, where, lambda row: f"{self.key} is {shown(array[row])}: {reason}")
        return pc.if_else(words.is_valid(), true, pa.scalar(None, pa.bool_()))


@dataclass(frozen=True)
class VectorEncoder(StoredFields):
    """Lists of numbers of equal length."""

    key: str
    separator: str | None
    missing: str
    width: int

    def encode(self, array: Any, where: Where) -> Encoded:
        """Encode lists; ValueError for another length, a null, NaN or infinity."""
        lists = as_lists(array, self.separator, self.key, where)
        null = numpy_of(lists.is_null())
        lengths = numpy_of(pc.fill_null(pc.list_value_length(lists), self.width))
        remedy = f"but the first row has {self.width}; give each row the same number"
        refuse(lengths != self.width, where, lambda row: f"{self.key} has {lengths[row]} numbers, {remedy}")
        if self.missing == "refuse":
            refuse(null, where, f'{self.key} is null; give missing = "zero"')
        values = np.zeros((len(lists), self.width), np.float32)
        flat = numbers_of(pc.list_flatten(lists), self.key, lambda at: where(at // max(1, self.width)))
        with np.errstate(over="ignore"):
            values[~null] = flat.reshape(-1, self.width)
        wrong = np.asarray(~np.isfinite(values).all(axis=1))
        refuse(wrong, where, f"{self.key} has a number that is null, NaN or infinite; correct it")
        return Encoded(values)


def scaled(array: Any, scale: str, key: str, where: Where) -> npt.NDArray[np.float64]:
    """Return numbers on the scale of their statistics; NaN for null. ValueError for infinity."""
    numbers = numbers_of(array, key, where)
    refuse(np.isinf(numbers), where, f"{key} is infinite; correct it", "exclude the row by where")
    return np.sign(numbers) * np.log1p(np.abs(numbers)) if scale == "log" else numbers


def as_float32(
    numbers: npt.NDArray[Any], key: str, where: Where, given: Any = None
) -> npt.NDArray[np.float32]:
    """Return numbers (finite or NaN) as float32; ValueError with the given value of one beyond its range."""
    shown = numbers if given is None else given
    with np.errstate(over="ignore"):
        stored = numbers.astype(np.float32)
    problem = "beyond float32; correct it, or scale it"
    refuse(np.isinf(stored), where, lambda row: f"{key} is {shown[row]}: {problem}")
    return stored


def numbers_of(array: Any, key: str, where: Where) -> npt.NDArray[np.float64]:
    """Return a column as float64, NaN for null; ValueError for text that is not a number."""

    def as_numbers(part: Any) -> Any:
        return without_blanks(part).cast(pa.float64(), safe=False)

    cast = converted(array, as_numbers, key, where, "not a number; correct it", "give another kind")
    return np.array(numpy_of(cast), np.float64)


def as_lists(array: Any, separator: str | None, key: str, where: Where) -> Any:
    """Return a column of lists; text is split. Text of blanks, or only a separator, is an empty list."""
    if is_text(array.type):
        if separator is None:
            raise TableFault(
                f"{key}: is text",
                "give a column of lists, as Parquet has",
                'give the separator of its parts, as separator = "|"',
            )
        inner = without_blanks(array)
        empty = pc.or_(pc.equal(pc.utf8_length(inner), 0), pc.equal(inner, separator.strip()))
        parts = pc.split_pattern(array, pattern=separator)
        return pc.if_else(empty, pa.scalar([], parts.type), parts) if pc.any(empty).as_py() else parts
    if pa.types.is_fixed_size_list(array.type):
        return array.cast(pa.list_(array.type.value_type))
    if pa.types.is_list(array.type) or pa.types.is_large_list(array.type):
        return array
    raise TableFault(f"{key}: is {array.type}", "give a column of lists", "give text with a separator")


Counts = npt.NDArray[np.int64]
_DAY = 86_400
_LINES = ("age", "year")  # standardized; others are cycles


@dataclass(frozen=True)
class DateEncoder(StoredFields):
    """Parts of times in UTC; nulls give zeros."""

    key: str
    parts: tuple[str, ...]
    unit: str | None
    timezone: str | None
    format: str | None
    missing: str
    means: tuple[float, ...] = ()  # of age and year, if they are parts
    stds: tuple[float, ...] = ()

    @property
    def width(self) -> int:
        """Numbers per row."""
        return sum(1 if part in _LINES else 2 for part in self.parts)

    def encode(self, array: Any, where: Where) -> Encoded:
        """Encode times."""
        seconds, null = _seconds(array, self, where)
        if self.missing == "refuse":
            refuse(null, where, f'{self.key} is null; give missing = "zero"')
        columns: list[npt.NDArray[np.float64]] = []
        statistics = iter(zip(self.means, self.stds, strict=True))
        for part in self.parts:
            if part in _LINES:
                mean, std = next(statistics)
                columns.append((_part(part, seconds) - mean) / std)
            else:
                angle = _part(part, seconds) * (2 * np.pi)
                columns += [np.sin(angle), np.cos(angle)]
        values = np.stack(columns, axis=1).astype(np.float32)
        values[null] = 0
        return Encoded(values)


@dataclass
class DateFitter:
    """Means and deviations of age and year."""

    plain: DateEncoder  # without statistics
    moments: dict[str, Moments] = field(default_factory=dict)

    def add(self, array: Any, where: Where) -> None:
        """Add the times of training rows."""
        seconds, null = _seconds(array, self.plain, where)
        for part in self.plain.parts:
            if part in _LINES:
                before = self.moments.get(part, Moments())
                self.moments[part] = before.merged(Moments.of(_part(part, seconds[~null])))

    def encoder(self) -> DateEncoder:
        """Return the encoder."""
        found = [self.moments.get(part, Moments()) for part in self.plain.parts if part in _LINES]
        means, stds = [one.mean() for one in found], [one.std() or 1.0 for one in found]
        return replace(self.plain, means=tuple(means), stds=tuple(stds))


def _seconds(array: Any, given: DateEncoder, where: Where) -> tuple[Counts, npt.NDArray[np.bool_]]:
    """Return seconds since 1970, 0 for nulls, and a mask of the nulls."""
    null: npt.NDArray[np.bool_] = numpy_of(array.is_null())
    seconds = np.zeros(len(array), np.int64)
    at = np.flatnonzero(~null)
    if len(at):
        settings = TimeFormat(given.unit, given.timezone, given.format)  # type: ignore[arg-type]
        own = unit_of(array.type, settings, given.key)
        own = finest([own, "us"]) if may_have_fractions(array.type, settings) else own
        times = to_unit(
            array.filter(pa.array(~null)), settings, own, given.key, lambda row: where(int(at[row]))
        )
        seconds[at] = times // PER_SECOND[own]
    return seconds, null


def _part(part: str, seconds: Counts) -> npt.NDArray[np.float64]:
    """Return the age in days, the year, or a position in a cycle from 0 to 1."""
    days = seconds.astype("datetime64[s]").astype("datetime64[D]")
    months = days.astype("datetime64[M]")
    found: npt.NDArray[Any]
    match part:
        case "age":
            found = seconds / _DAY
        case "year":
            found = months.astype("datetime64[Y]").astype(np.int64) + 1970.0
        case "month":
            found = months.astype(np.int64) % 12 / 12
        case "day":
            found = (days - months).astype(np.int64) / 31
        case "weekday":
            found = (seconds // _DAY + 3) % 7 / 7  # 1970 began on a Thursday
        case _:
            found = seconds % _DAY / _DAY
    return np.asarray(found, np.float64)


_OTHER, _NULL = 0, 1  # the first two numbers of a row, before those of the categories
_BESIDE = 2
_MOST_DISTINCT = 1 << 22  # per column: each takes about 150 bytes of memory while counting


@dataclass(frozen=True)
class CategoryEncoder(StoredFields):
    """One number per category; the first two stand for other categories and for null."""

    key: str
    several: str  # "none", or "lists" for several categories per row
    separator: str | None
    categories: tuple[str, ...] = ()
    encoding: str = "one-hot"  # or "embedding": the features of its node type are sparse rows

    @property
    def width(self) -> int:
        """Numbers per row."""
        return len(self.categories) + _BESIDE

    def encode(self, array: Any, where: Where) -> Encoded:
        """Encode categories; rows with unknown categories are counted."""
        values = np.zeros((len(array), self.width), np.float32)
        values[numpy_of(array.is_null()), _NULL] = 1
        rows, places = self._entries(array, where)
        values[rows, places] = 1
        return Encoded(values, int(values[:, _OTHER].sum()))

    def codes(self, array: Any, where: Where) -> Encoded:
        """Return the index of each row's single category, int64 (rows), instead of numbers."""
        codes = np.full(len(array), _NULL)
        rows, places = self._entries(array, where)
        codes[rows] = places
        return Encoded(codes, int((codes == _OTHER).sum()))

    def _entries(self, array: Any, where: Where) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return the row of each category that is not null, and its index in the row."""
        rows, texts = self.rows_and_texts(array, where)
        codes, names = _coded(texts)
        return rows, np.array([self._places.get(name, _OTHER) for name in names], np.int64)[codes]

    def rows_and_texts(self, array: Any, where: Where) -> tuple[npt.NDArray[np.int64], Any]:
        """Return the categories that are not null, and the row of each."""
        if self.several == "none":
            texts = texts_of(array, self.key, where)
            rows = np.arange(len(array))
        else:
            lists = as_lists(array, self.separator, self.key, where)
            rows = numpy_of(pc.list_parent_indices(lists)).astype(np.int64)
            texts = texts_of(pc.list_flatten(lists), self.key, lambda at: where(int(rows[at])))
            texts = texts if self.separator is None else pc.utf8_trim_whitespace(texts)
        valid = texts.is_valid()
        return rows[numpy_of(valid)], texts.filter(valid)

    @cached_property
    def _places(self) -> Mapping[str, int]:
        return {name: number + _BESIDE for number, name in enumerate(self.categories)}

    def state(self) -> Mapping[str, Any]:
        """Return settings and categories as JSON values; one-hot in the form of earlier versions."""
        state = asdict(self)
        return state if self.encoding != "one-hot" else {n: v for n, v in state.items() if n != "encoding"}


@dataclass
class CategoryFitter:
    """Counts of categories in the order of their first appearance."""

    plain: CategoryEncoder  # without categories
    limit: int
    min_count: int
    counts: Counter[str] = field(default_factory=Counter)

    def add(self, array: Any, where: Where) -> None:
        """Add the values of training rows."""
        _, texts = self.plain.rows_and_texts(array, where)
        codes, names = _coded(texts)
        counts = np.bincount(codes, minlength=len(names)).tolist()
        self.counts.update(dict(zip(names, counts, strict=True)))
        if len(self.counts) > _MOST_DISTINCT:
            raise ValueError(
                f"{self.plain.key}: training rows have more than {_MOST_DISTINCT:,} different categories, "
                'which are counted in memory; give kind = "text", or for nodes "words", which hash them, or '
                "remove the column"
            )

    def encoder(self) -> CategoryEncoder:
        """Return the encoder of the most frequent categories; equal counts follow first appearance."""
        frequent = self.counts.most_common(self.limit)
        return replace(self.plain, categories=tuple(n for n, count in frequent if count >= self.min_count))


@dataclass(frozen=True)
class RelationEncoder(StoredFields):
    """Relations as integers, in ascending order of all names of the edge table."""

    key: str
    names: tuple[str, ...]
    width: int = 1

    def encode(self, array: Any, where: Where) -> Encoded:
        """Return the codes, int64 (rows, 1); ValueError for a null and for a relation without a code."""
        texts = texts_of(array, self.key, where)
        codes = numpy_of(pc.fill_null(pc.index_in(texts, pa.array(self.names, pa.string())), -1))
        other = f", which is not one of the {len(self.names):,} relations of the graph"
        remedy = "correct the row, or exclude it by where"
        refuse_null(texts, where, f"{self.key} is null; {remedy}")
        refuse(codes < 0, where, lambda row: f"{self.key} is {texts[row].as_py()!r}{other}; {remedy}")
        return Encoded(codes.astype(np.int64)[:, None])


@dataclass
class RelationFitter:
    """Names of relations, of all rows."""

    key: str
    names: set[str] = field(default_factory=set)

    def add(self, array: Any, where: Where) -> None:
        """Add the names of rows."""
        self.names.update(texts_of(array.drop_null().unique(), self.key, where).to_pylist())

    def encoder(self) -> RelationEncoder:
        """Return the encoder."""
        return RelationEncoder(self.key, tuple(sorted(self.names)))


def texts_of(array: Any, key: str, where: Where) -> Any:
    """Return values as text: 3 and "3" are the same category. ValueError for lists and other structures."""
    if pa.types.is_dictionary(array.type):
        array = array.cast(array.type.value_type)
    reason = "neither text nor a number; convert the column"
    return converted(array, lambda part: part.cast(pa.string()), key, where, reason, "give another kind")


def _coded(texts: Any) -> tuple[npt.NDArray[np.int64], list[str]]:
    """Return a code for each text, and the texts by code in the order of first appearance."""
    encoded = texts.dictionary_encode()
    codes = numpy_of(encoded.indices).astype(np.int64)
    return codes, encoded.dictionary.to_pylist()


_WORD = re.compile(r"[^\W_]+")
_SIGN_BITS = 64


class _Bags(StoredFields):
    """An encoder of bags of words, with the number of training texts by bucket."""

    key: str
    words: int  # buckets
    bigrams: str
    buckets: tuple[int, ...]  # with a training text, ascending
    counts: tuple[int, ...]  # training texts of each bucket

    def bags(self, array: Any, where: Where) -> Iterator[set[int] | None]:
        """Yield the buckets of the words of each row; None for null."""
        for text in texts_of(array, self.key, where).to_pylist():
            yield None if text is None else set(buckets_of(text, self.words, self.bigrams))

    @cached_property
    def _counts(self) -> Mapping[int, int]:
        return dict(zip(self.buckets, self.counts, strict=True))


@dataclass(frozen=True)
class TextEncoder(_Bags):
    """Weighted sums of +1 and -1 per word, normalized to length 1; zeros for a text without known words."""

    key: str
    words: int
    width: int
    bigrams: str
    texts: int = 0  # in training
    buckets: tuple[int, ...] = ()
    counts: tuple[int, ...] = ()

    def encode(self, array: Any, where: Where) -> Encoded:
        """Encode texts; words of buckets without training texts are ignored."""
        values = np.zeros((len(array), self.width), np.float32)
        unknown = 0
        for row, bag in enumerate(self.bags(array, where)):
            known = sorted(bucket for bucket in bag or () if bucket in self._counts)
            unknown += len(known) < len(bag or ())
            if known:
                values[row] = self._sum(known)
        return Encoded(values, unknown)

    def _sum(self, buckets: list[int]) -> npt.NDArray[np.float64]:
        total = np.zeros(self.width)
        for bucket in buckets:
            total += math.log((1 + self.texts) / (1 + self._counts[bucket])) * _signs(bucket, self.width)
            total += _signs(bucket, self.width)
        length = math.sqrt(float(np.dot(total, total)))
        return total / length if length else total


def buckets_of(text: str, words: int, bigrams: str) -> Iterable[int]:
    """Yield the bucket of each lower-case word, and of each pair of adjacent words."""
    found = _WORD.findall(text.lower())
    for word in found:
        yield bucket_of(word, words)
    if bigrams == "all":
        for one, other in pairwise(found):
            yield bucket_of(f"{one} {other}", words)


def bucket_of(word: str, words: int) -> int:
    """Return the bucket of a word among `words` buckets."""
    return _digest(word) % words


@lru_cache(maxsize=1 << 16)
def _digest(word: str) -> int:
    return int.from_bytes(blake2b(word.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little")


@lru_cache(maxsize=1 << 14)
def _signs(bucket: int, width: int) -> npt.NDArray[np.float64]:
    """Return signs by the bits of a digest of the bucket."""
    size = -(-width // _SIGN_BITS) * (_SIGN_BITS // 8)
    digest = b"".join(
        blake2b(bucket.to_bytes(8, "little"), digest_size=64, salt=block.to_bytes(8, "little")).digest()
        for block in range(-(-size // 64))
    )
    bits = np.unpackbits(np.frombuffer(digest, np.uint8), count=width)
    return bits.astype(np.float64) * 2 - 1


@dataclass(frozen=True)
class WordsEncoder(_Bags):
    """Entries of a row's words, weighted by rarity in training or all 1; none for a null."""

    key: str
    words: int
    separator: str | None  # of the entries of a list in text
    bigrams: str
    values: str  # "rarity" or "one"
    most: int
    texts: int = 0  # in training
    longest: int = 1  # entries per stored row, including padding
    buckets: tuple[int, ...] = ()
    counts: tuple[int, ...] = ()

    @property
    def width(self) -> int:
        """Width of a row, including elements that are not stored."""
        return self.words

    def encode(self, array: Any, where: Where) -> Encoded:
        """Return int32 (rows, 2, longest), the form of sparse columns, of words that are in training.

        A row with more than `longest` known words keeps the rarest ones.
        """
        indptr, places, numbers, unknown = [0], [], [], 0
        for bag in self.bags(array, where):
            known = sorted(bucket for bucket in bag or () if bucket in self._counts)
            unknown += len(known) < len(bag or ())
            kept = sorted(sorted(known, key=lambda bucket: self._counts[bucket])[: self.longest])
            places += kept
            numbers.append(self._numbers(kept))
            indptr.append(len(places))
        values = torch.from_numpy(np.concatenate([np.zeros(0, np.float32), *numbers]))
        indices = torch.tensor(places, dtype=torch.int64)
        return Encoded(packed(torch.tensor(indptr), indices, values, self.longest).numpy(), unknown)

    def bags(self, array: Any, where: Where) -> Iterator[set[int] | None]:
        """Yield the buckets of each row, of the words of a text or the entries of a list; None for null."""
        if self.separator is None and not pa.types.is_nested(array.type):
            yield from super().bags(array, where)
            return
        for row in as_lists(array, self.separator, self.key, where).to_pylist():
            entries = [str(entry).strip() for entry in row or () if entry is not None]
            yield None if row is None else {bucket_of(entry, self.words) for entry in entries}

    def _numbers(self, buckets: Iterable[int]) -> npt.NDArray[np.float32]:
        """Return the values of a row's entries: 1, or weights by rarity, normalized to length 1."""
        counts = np.array([self._counts[bucket] for bucket in buckets], np.float64)
        if self.values == "one" or not len(counts):
            return np.ones(len(counts), np.float32)
        weights = np.array([1 + math.log((1 + self.texts) / (1 + count)) for count in counts])
        return (weights / math.sqrt(float(np.dot(weights, weights)))).astype(np.float32)


@dataclass
class BagFitter:
    """Number of rows by bucket, and the maximum number of entries of a row."""

    plain: TextEncoder | WordsEncoder  # without statistics
    texts: int = 0
    longest: int = 1
    counts: Counter[int] = field(default_factory=Counter)

    def add(self, array: Any, where: Where) -> None:
        """Add the rows of training."""
        for bag in self.plain.bags(array, where):
            self.texts += bag is not None
            self.longest = max(self.longest, len(bag or ()))
            self.counts.update(bag or ())

    def encoder(self) -> TextEncoder | WordsEncoder:
        """Return the encoder; ValueError if sparse rows would be larger than dense ones."""
        buckets = sorted(self.counts)
        counts = tuple(self.counts[bucket] for bucket in buckets)
        fitted = replace(self.plain, texts=self.texts, buckets=tuple(buckets), counts=counts)
        if isinstance(fitted, TextEncoder):
            return fitted
        longest = min(fitted.most, self.longest)
        if longest > 1 and fitted.words < 2 * longest:
            raise ValueError(
                f"{fitted.key}: rows have up to {longest:,} of {fitted.words:,} words, and a sparse row "
                f"would be larger than a dense one; give words = {4 * longest:,} or more, a lower most, or "
                'kind = "text"'
            )
        return replace(fitted, longest=longest)


@dataclass
class VectorFitter:
    """Fitter that takes the length of the first vector."""

    plain: VectorEncoder  # of width 0

    def add(self, array: Any, where: Where) -> None:
        """Record the length of the first vector."""
        if not self.plain.width and len(array) > array.null_count:
            lists = as_lists(array, self.plain.separator, self.plain.key, where)
            width = pc.max(pc.list_value_length(lists.drop_null().slice(0, 1))).as_py()
            self.plain = replace(self.plain, width=width)

    def encoder(self) -> VectorEncoder:
        """Return the encoder; ValueError if no row has numbers."""
        if not self.plain.width:
            raise ValueError(f"{self.plain.key}: no training row has a number; remove the column")
        return self.plain


# Training rows are added in order.
Fitter = (
    NumberFitter | CategoryFitter | BagFitter | DateFitter | VectorFitter | RelationFitter | BooleanEncoder
)


def fitter(spec: specs.Column, key: str) -> Fitter:
    """Return an empty fitter of a column; `key` names it in errors."""
    match spec:
        case specs.Number():
            return NumberFitter(NumberEncoder(key, spec.scale, spec.fill, spec.flag))
        case specs.Category():
            plain = CategoryEncoder(key, "none", None, encoding=spec.encoding)
            return CategoryFitter(plain, spec.most, spec.min_count)
        case specs.Multi():
            return CategoryFitter(CategoryEncoder(key, "lists", spec.separator), spec.limit, spec.min_count)
        case specs.Text():
            return BagFitter(TextEncoder(key, spec.words, spec.width, spec.bigrams))
        case specs.Words():
            bags = key, spec.words, spec.separator, spec.bigrams
            return BagFitter(WordsEncoder(*bags, spec.values, spec.most))
        case specs.Date():
            return DateFitter(DateEncoder(key, spec.parts, spec.unit, spec.timezone, spec.format, spec.fill))
        case specs.Vector():
            return VectorFitter(VectorEncoder(key, spec.separator, spec.fill, 0))
        case specs.Boolean():
            return BooleanEncoder(key, spec.true, spec.false)
        case specs.Relation():
            return RelationFitter(key)
    raise AssertionError(spec)


_ENCODERS: Mapping[str, Any] = {
    "bool": BooleanEncoder, "category": CategoryEncoder, "date": DateEncoder, "number": NumberEncoder,
    "relation": RelationEncoder, "text": TextEncoder, "vector": VectorEncoder, "words": WordsEncoder,
}  # fmt: skip
_KINDS = {encoder.__name__: kind for kind, encoder in _ENCODERS.items()}


def stored(encoder: ColumnEncoder) -> dict[str, Any]:
    """Return an encoder as JSON values."""
    return {"encoder": type(encoder).__name__, **encoder.state()}


def kind_of(state: Mapping[str, Any]) -> str:
    """Return the kind of column of a stored encoder."""
    return "multi" if state.get("several") == "lists" else _KINDS[state["encoder"]]


def restored(state: Mapping[str, Any]) -> ColumnEncoder:
    """Return the encoder of stored JSON values."""
    values = {name: value for name, value in state.items() if name != "encoder"}
    encoder: ColumnEncoder = _ENCODERS[_KINDS[state["encoder"]]].of_state(values)
    return encoder


Values = npt.NDArray[Any]


@dataclass(frozen=True, eq=False)
class FeatureRows:
    """The features: all columns without a separate file, in the order of the spec.

    If a category has encoding "embedding", rows are sparse: an entry for each category, and for each number
    of other columns. Values and indices equal those of dense rows.
    """

    encoders: Mapping[str, ColumnEncoder]

    @classmethod
    def of(cls, encoders: Mapping[str, ColumnEncoder]) -> FeatureRows:
        """Return the features for these encoders."""
        return cls({name: one for name, one in encoders.items() if not isinstance(one, WordsEncoder)})

    @property
    def width(self) -> int:
        """Numbers of a row, with those that are not stored."""
        return sum(one.width for one in self.encoders.values())

    @property
    def is_sparse(self) -> bool:
        """True if rows are stored as pairs of (index, value)."""
        categories = (one for one in self.encoders.values() if isinstance(one, CategoryEncoder))
        return any(one.encoding == "embedding" for one in categories)

    @property
    def stored(self) -> tuple[str, tuple[int, ...]]:
        """The dtype and the shape of a stored row."""
        if not self.is_sparse:
            return "float32", (self.width,)
        return "int32", (2, sum(1 if self._code(one) else one.width for one in self.encoders.values()))

    def encode(self, name: str, array: Any, where: Where) -> Encoded:
        """Encode a column: numbers (rows, width) or, for a category in sparse rows, codes (rows)."""
        encoder = self.encoders[name]
        code = self._code(encoder)
        return encoder.encode(array, where) if code is None else code.codes(array, where)

    def joined(self, columns: Sequence[Values]) -> Values:
        """Return stored rows, with all columns in order."""
        if not self.is_sparse:
            return np.concatenate(columns, axis=1)
        indices, values, first = [], [], 0
        for encoder, column in zip(self.encoders.values(), columns, strict=True):
            is_code = column.ndim == 1
            places = column[:, None] if is_code else np.broadcast_to(np.arange(encoder.width), column.shape)
            indices.append((first + places).astype(np.int32))
            values.append(np.ones(places.shape, np.float32) if is_code else column)
            first += encoder.width
        return _packed(np.concatenate(indices, axis=1), np.concatenate(values, axis=1))

    def _code(self, encoder: ColumnEncoder) -> CategoryEncoder | None:
        """Return the encoder of a column with one category per row, which has one entry in sparse rows."""
        if self.is_sparse and isinstance(encoder, CategoryEncoder) and encoder.several == "none":
            return encoder
        return None


def _packed(indices: npt.NDArray[np.int32], values: npt.NDArray[np.float32]) -> npt.NDArray[np.int32]:
    """Return int32 (rows, 2, entries): nonzero entries first, padded with 0."""
    unused = values == 0
    order = np.argsort(unused, axis=1, kind="stable")
    numbers = np.where(unused, np.float32(0), values)
    entries = np.stack([np.where(unused, np.int32(0), indices), numbers.view(np.int32)], axis=1)
    return np.take_along_axis(entries, order[:, None], axis=2)
