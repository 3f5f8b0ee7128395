"""Deliveries: what each source brought to a store, and rows that are there already.

A store records its sources (`SourceRecord`): name, content, rows and the box of their
inputs. When more rows are delivered, `KnownRows` finds those that the store has
already by 64-bit digests of rows. Memory is bounded whatever the number of rows:
digests lie in temporary files, split by their leading bits, and only sources whose box
overlaps that of the delivery are read again. `ColumnSample` compares the spread of
columns, which shows a change of units that no file declares.
"""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from io import FileIO
from operator import itemgetter
from pathlib import Path
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt

from dorff.data.array_files import FloatArray
from dorff.data.layout import Attributes
from dorff.errors import InputError

Digests = npt.NDArray[np.uint64]
Runs = tuple[tuple[int, int], ...]
"""Runs of rows, (first, one past the last), in order and apart."""

MAX_RUNS: Final = 100_000
"""Runs of dropped rows that a store's metadata may list."""

PARTITION_ROWS: Final = 2**20
"""Delivered rows of one partition, which is compared in memory."""

MAX_PARTITIONS: Final = 256
"""Partitions, each of which is a temporary file."""

FILTER_BITS: Final = (16, 28)
"""Least and most address bits of the table that skips rows of other keys."""

REFUSED_SHARE: Final = 0.5
"""Share of a source's rows, known already, from which the source is refused."""

REFUSED_ROWS: Final = 10
"""Known rows of a source below which it is never refused."""

DISTINCT_SHARE: Final = 0.9
"""Share of distinct rows below which equal rows are ordinary in a source."""

MIN_SPREAD_ROWS: Final = 50
"""Finite values of a column, old and new, below which spreads are not compared."""

MAX_SPREAD_RATIO: Final = 10.0
"""Ratio of median absolute deviations that is warned of."""

SAMPLE_ROWS: Final = 2**15
"""Rows of which a spread is estimated, at most."""

_ENTRY: Final = np.dtype([("key", "<u8"), ("row", "<u8"), ("number", "<i8")])


@dataclass(frozen=True, kw_only=True)
class SourceRecord:
    """What a store keeps of one source.

    Attributes
    ----------
    name : str
        The path it was ingested from.
    content : str
        Digest of its bytes.
    first, rows : int
        Number of its first row in the store, and how many rows it has.
    box : tuple of tuple of float
        Least and largest finite value of each input column; empty if unknown.
    dropped : bool
        Whether its rows were taken away by `drop`.
    duplicates, corrected, replaced : int
        Delivered rows that were in the store already, that had the key of a row there
        but other values, and rows of the store that were dropped for them.
    """

    name: str
    content: str
    first: int
    rows: int
    box: tuple[tuple[float, ...], ...] = ()
    dropped: bool = False
    duplicates: int = 0
    corrected: int = 0
    replaced: int = 0

    @property
    def stop(self) -> int:
        """One past the number of its last row."""
        return self.first + self.rows

    def overlaps(self, other: "SourceRecord") -> bool:
        """Return whether inputs of both could be equal, by their boxes."""
        if not self.box or not other.box:
            return True
        (low, high), (other_low, other_high) = np.array(self.box), np.array(other.box)
        return bool(np.all(low <= other_high) and np.all(other_low <= high))

    def to_attribute(self) -> Attributes:
        """Return it as JSON, without what is empty."""
        return {name: value for name, value in asdict(self).items() if value}

    @classmethod
    def from_attribute(cls, value: Mapping[str, Any]) -> Self:
        """Return the record of what `to_attribute` gave; raises TypeError otherwise."""
        box = tuple(tuple(map(float, end)) for end in value.get("box", ()))
        return cls(**({"first": 0} | dict(value) | {"box": box}))


def read_sources(attributes: Any, where: object) -> tuple[list[SourceRecord], list[str]]:
    """Return the recorded sources of a store and the contents of earlier ones.

    Stores made before sources were recorded list their contents alone. Raises
    InputError if the list is damaged.
    """
    try:
        records = [SourceRecord.from_attribute(source) for source in attributes if isinstance(source, Mapping)]
    except (TypeError, ValueError):
        raise InputError(
            f"{where}: its attribute dorff.sources is damaged; restore its metadata from a copy."
        ) from None
    return records, [str(one) for one in attributes if not isinstance(one, Mapping)]


def merge_runs(*several: Sequence[Sequence[int]]) -> Runs:
    """Return the union of runs of rows."""
    merged: list[tuple[int, int]] = []
    for first, stop in sorted((int(a), int(b)) for runs in several for a, b in runs):
        if merged and first <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(stop, merged[-1][1]))
        elif first < stop:
            merged.append((first, stop))
    return tuple(merged)


def subtract_runs(first: int, stop: int, runs: Runs) -> Runs:
    """Return the rows first..stop-1 that are in none of the runs."""
    left, start = [], first
    for begin, end in runs:
        if start < min(begin, stop):
            left.append((start, min(begin, stop)))
        start = max(start, end)
    if start < stop:
        left.append((start, stop))
    return tuple(left)


def runs_of_rows(numbers: npt.NDArray[np.int64]) -> Runs:
    """Return row numbers, in any order, as runs."""
    numbers = np.unique(numbers)
    breaks = np.flatnonzero(np.diff(numbers) > 1) + 1
    parts = [part for part in np.split(numbers, breaks) if len(part)]
    return tuple((int(part[0]), int(part[-1]) + 1) for part in parts)


def mark_rows(runs: Runs, start: int, stop: int) -> npt.NDArray[np.bool_]:
    """Return which of the rows start..stop-1 are in the runs."""
    marked = np.zeros(stop - start, dtype=bool)
    for first, end in clip_runs(runs, start, stop):
        marked[first - start : end - start] = True
    return marked


def clip_runs(runs: Runs, start: int, stop: int) -> Runs:
    """Return the parts of the runs that are in start..stop-1.

    There may be many runs, and one call for each block of rows: a bisection finds them.
    """
    begin = bisect_right(runs, start, key=itemgetter(1))
    end = bisect_left(runs, stop, key=itemgetter(0))
    return tuple((max(first, start), min(last, stop)) for first, last in runs[begin:end])


def count_rows(runs: Runs) -> int:
    """Return how many rows the runs have."""
    return sum(stop - first for first, stop in runs)


def digest_rows(columns: Sequence[npt.NDArray[Any]]) -> Digests:
    """Return a 64-bit digest of each row.

    Columns are float or integer arrays (n,). Values that compare equal have equal
    digests whatever their type; all NaN are one value. Two of N different rows share a
    digest with a probability of about N^2 / 2^65.
    """
    digests = np.full(len(columns[0]), 0x9E3779B97F4A7C15, np.uint64)
    for values in columns:
        if values.dtype.kind == "f":
            real = values.astype(np.float64) + 0.0  # -0 + 0 is 0
            real[np.isnan(real)] = np.nan
            bits = real.view(np.uint64)
        else:
            bits = values.astype(np.int64).view(np.uint64)
        # The finalizer of SplitMix64 (Steele, Lea and Flood 2014), chained.
        digests = (digests ^ bits) * np.uint64(0xBF58476D1CE4E5B9)
        digests ^= digests >> np.uint64(30)
        digests *= np.uint64(0x94D049BB133111EB)
        digests ^= digests >> np.uint64(31)
    return digests


@dataclass(frozen=True, kw_only=True)
class KeyColumns:
    """The columns, as (array, place) pairs, that identify a row, and all columns."""

    key: tuple[tuple[str, int], ...]
    row: tuple[tuple[str, int], ...]

    def digests(self, rows: Mapping[str, npt.NDArray[Any]]) -> tuple[Digests, Digests]:
        """Return digests of the keys and of the whole rows; arrays are (n, columns)."""
        key, row = (
            digest_rows([rows[array][:, place] for array, place in columns]) for columns in (self.key, self.row)
        )
        return key, row


@dataclass
class _Counts:
    """What is known of one source's rows."""

    rows: int = 0
    distinct_rows: int = 0
    distinct_keys: int = 0
    duplicates: int = 0
    known_keys: int = 0
    repeats: bool = False


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Rows of one source that were in the store, or in an earlier source, already.

    `known_keys` have the key of an earlier row, `duplicates` are equal to one in all
    columns. `corrected` have the key of an earlier row and other values; 0 where keys
    do not identify rows. `is_identified` says whether they do, `is_declared` whether a
    user said so, `is_distinct` whether hardly two rows of the source are equal.
    """

    rows: int
    known_keys: int
    duplicates: int
    corrected: int
    is_identified: bool
    is_declared: bool
    is_distinct: bool

    @property
    def is_redelivery(self) -> bool:
        """Whether so much is known that the source seems to be an earlier one.

        Equal inputs alone do not show it, unless a user declared that they identify a
        row: a second day of the same stations has them too.
        """
        equal = self.duplicates if self.is_distinct else 0
        if not self.is_declared and equal < REFUSED_ROWS:
            return False
        return equal + self.corrected >= max(REFUSED_ROWS, REFUSED_SHARE * self.rows)


class KnownRows:
    """Finds delivered rows that are in the store, or in an earlier source, already.

    `deliver` takes the digests of delivered rows, in order. Then `offer` takes those of
    earlier rows that may be equal, and `compare` gives the result. Temporary files lie
    in `folder`.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._spill = _open_unbuffered(folder / "delivered")
        self._first: int | None = None
        self._count = 0
        self._files: list[Any] = []
        self._seen, self._seen_rows = np.zeros(0, bool), np.zeros(0, bool)
        self._shift = np.uint64(0)

    def deliver(self, number: int, keys: Digests, rows: Digests) -> None:
        """Add delivered rows, the first of which has this number in the store."""
        self._first = number if self._first is None else self._first
        self._write(self._spill, keys, rows, number + np.arange(len(keys)))
        self._count += len(keys)

    def offer(self, numbers: npt.NDArray[np.int64], keys: Digests, rows: Digests, *, declared: bool) -> None:
        """Add earlier rows; those whose key was surely not delivered are left out.

        Unless the key is `declared`, two rows of one key show that it identifies none,
        so that further ones are left out too if they surely equal no delivered row.
        """
        self._prepare()
        maybe = self._seen[keys >> self._shift]
        keys, rows, numbers = keys[maybe], rows[maybe], numbers[maybe]
        if not declared:
            equal = self._seen_rows[rows >> self._shift]
            kept = _mark_first_two(np.where(equal, rows, keys))
            keys, rows, numbers = keys[kept], rows[kept], numbers[kept]
        self._partition(keys, rows, numbers)

    def compare(self, stops: Sequence[int], *, key_identifies: bool) -> tuple[list[Comparison], Runs]:
        """Return a comparison for each source, and the earlier rows of delivered keys.

        Source number k has the rows before `stops[k]` that no source before has.
        `key_identifies` says that equal keys mean the same row by declaration; if not,
        they do where neither the source nor the rows of its keys repeat one.
        """
        self._prepare()
        assert self._first is not None
        first, counts, met = self._first, [_Counts() for _ in stops], []
        for file in self._files:
            file.seek(0)
            entries = np.fromfile(file, _ENTRY)
            met.append(_count_known(entries, first, np.array(stops), counts))
        comparisons = []
        for source in counts:
            unique = source.distinct_keys == source.rows and not source.repeats
            identified = key_identifies or unique
            changed = source.known_keys - source.duplicates
            comparisons.append(
                Comparison(
                    rows=source.rows,
                    known_keys=source.known_keys,
                    duplicates=source.duplicates,
                    corrected=changed if identified else 0,
                    is_identified=identified,
                    is_declared=key_identifies,
                    is_distinct=source.distinct_rows >= DISTINCT_SHARE * source.rows,
                )
            )
        return comparisons, runs_of_rows(np.concatenate(met))

    def close(self) -> None:
        """Remove the temporary files."""
        for file in (self._spill, *self._files):
            file.close()
        for path in self._folder.iterdir():
            path.unlink()

    def _prepare(self) -> None:
        """Split the delivered rows into partitions, once they are all there."""
        if self._files:
            return
        fewest, most = FILTER_BITS
        bits = int(np.clip(math.ceil(math.log2(4 * self._count + 1)), fewest, most))
        self._seen, self._seen_rows = np.zeros(2**bits, bool), np.zeros(2**bits, bool)
        self._shift = np.uint64(64 - bits)
        count = int(np.clip(-(-self._count // PARTITION_ROWS), 1, MAX_PARTITIONS))
        self._files = [_open_unbuffered(self._folder / str(j)) for j in range(count)]
        self._spill.seek(0)
        while len(entries := np.fromfile(self._spill, _ENTRY, PARTITION_ROWS)):
            self._seen[entries["key"] >> self._shift] = True
            self._seen_rows[entries["row"] >> self._shift] = True
            self._partition(entries["key"], entries["row"], entries["number"])

    def _partition(self, keys: Digests, rows: Digests, numbers: npt.NDArray[np.int64]) -> None:
        part = keys % np.uint64(len(self._files))
        for j, file in enumerate(self._files):
            here = part == j if len(self._files) > 1 else slice(None)
            self._write(file, keys[here], rows[here], numbers[here])

    def _write(self, file: Any, keys: Digests, rows: Digests, numbers: npt.NDArray[np.int64]) -> None:
        entries = np.empty(len(keys), _ENTRY)
        entries["key"], entries["row"], entries["number"] = keys, rows, numbers
        content = memoryview(entries.tobytes())
        while content:  # NumPy's own writing does not say that the disk is full
            content = content[file.write(content) :]


def _mark_first_two(digests: Digests) -> npt.NDArray[np.bool_]:
    """Return which entries are the first or second of their digest."""
    order = np.argsort(digests, kind="stable")
    ordered = digests[order]
    marked = np.ones(len(digests), bool)
    marked[order[2:][ordered[2:] == ordered[:-2]]] = False
    return marked


def _open_unbuffered(path: Path) -> FileIO:
    """Open a new file whose errors come from the write that causes them."""
    return FileIO(path, "w+")


def _count_known(
    entries: npt.NDArray[Any],
    first: int,
    stops: npt.NDArray[np.int64],
    counts: list[_Counts],
) -> npt.NDArray[np.int64]:
    """Add one partition to the counts; return the numbers of earlier rows it met.

    A delivered row is known by its key, or by all of it, if a row before its source
    has the same.
    """
    starts = np.concatenate([[first], stops[:-1]])
    by_key = _match_earlier(entries, "key", starts, stops)
    by_row = _match_earlier(entries, "row", starts, stops)
    of_source = np.searchsorted(stops, entries["number"], side="right")
    delivered = entries["number"] >= first
    for number, count in enumerate(counts):
        mine = delivered & (of_source == number)
        count.rows += int(mine.sum())
        count.distinct_keys += int(by_key.is_first[mine].sum())
        count.distinct_rows += int(by_row.is_first[mine].sum())
        count.known_keys += int(by_key.is_known[mine].sum())
        count.duplicates += int(by_row.is_known[mine].sum())
        count.repeats |= bool(by_key.is_repeated[mine].any())
    return by_key.met


@dataclass(frozen=True, kw_only=True)
class _Matches:
    """Rows compared with those before their source by one of their digests, (n,).

    `is_known`: a row before its source has the digest; `is_repeated`: two rows have.
    `is_first`: no row of its source before it has. `met` are the numbers of rows that
    a later source has again.
    """

    is_known: npt.NDArray[np.bool_]
    is_repeated: npt.NDArray[np.bool_]
    is_first: npt.NDArray[np.bool_]
    met: npt.NDArray[np.int64]


def _match_earlier(
    entries: npt.NDArray[Any],
    name: str,
    starts: npt.NDArray[np.int64],
    stops: npt.NDArray[np.int64],
) -> _Matches:
    """Compare the entries with those before their source by the digests `name`."""
    order = np.lexsort((entries["number"], entries[name]))
    digests, numbers = entries[name][order], entries["number"][order]
    n = len(digests)
    # Rows before the first source are source -1.
    source = np.searchsorted(stops, numbers, side="right")
    source = np.where(numbers < starts[0], -1, source)

    begins_group = np.ones(n, bool)
    begins_group[1:] = digests[1:] != digests[:-1]
    begins_source = begins_group.copy()
    begins_source[1:] |= source[1:] != source[:-1]

    # Equal digests form a group, in order of row numbers. Before the source of a row
    # the group has the rows from the group's begin to the source's.
    positions = np.arange(n)
    group_begin = np.maximum.accumulate(np.where(begins_group, positions, 0))
    source_begin = np.maximum.accumulate(np.where(begins_source, positions, 0))
    earlier = source_begin - group_begin
    group_begins = np.flatnonzero(begins_group)
    group_sizes = np.diff(group_begins, append=n)
    last = np.repeat(group_begins + group_sizes - 1, group_sizes)
    met = numbers[source < source[last]]

    restored = np.empty(n, np.int64)
    restored[order] = positions
    return _Matches(
        is_known=(earlier > 0)[restored],
        is_repeated=(earlier > 1)[restored],
        is_first=begins_source[restored],
        met=met,
    )


@dataclass
class ColumnSample:
    """A sample of rows by their digests, of bounded size, whatever their order.

    A row is in the sample if its digest is below a limit, which is halved whenever
    more than `SAMPLE_ROWS` rows are below it.
    """

    limit: int = 2**64 - 1
    digests: list[Digests] = field(default_factory=list)
    values: list[FloatArray] = field(default_factory=list)

    def add(self, digests: Digests, values: FloatArray) -> None:
        """Consider further rows, values (n, columns)."""
        chosen = digests <= np.uint64(self.limit)
        self.digests.append(digests[chosen])
        self.values.append(np.asarray(values[chosen], dtype=np.float64))
        while sum(map(len, self.digests)) > SAMPLE_ROWS:
            self.limit //= 2
            kept = [one <= np.uint64(self.limit) for one in self.digests]
            pairs = list(zip(self.digests, self.values, kept, strict=True))
            self.digests = [np.concatenate([one[keep] for one, _, keep in pairs])]
            self.values = [np.concatenate([rows[keep] for _, rows, keep in pairs])]

    def merge(self, other: "ColumnSample") -> "ColumnSample":
        """Return the sample of the rows of both."""
        merged = ColumnSample(limit=min(self.limit, other.limit))
        for digests, values in zip([*self.digests, *other.digests], [*self.values, *other.values], strict=True):
            merged.add(digests, values)
        return merged

    def spreads(self, columns: int) -> list[float | None]:
        """Return each column's median absolute deviation; None of too few values."""
        values = np.vstack([np.empty((0, columns)), *self.values])
        return [median_absolute_deviation(column) for column in values.T]


def median_absolute_deviation(values: FloatArray) -> float | None:
    """Return the median absolute deviation of the finite values; None of too few."""
    finite = values[np.isfinite(values)]
    if len(finite) < MIN_SPREAD_ROWS:
        return None
    return float(np.median(np.abs(finite - np.median(finite))))


def has_jumped(before: float | None, after: float | None, *, either: bool) -> bool:
    """Return whether a spread grew by `MAX_SPREAD_RATIO`, or shrank if `either`."""
    if not before or not after:
        return False
    grown = after / before >= MAX_SPREAD_RATIO
    return grown or (either and before / after >= MAX_SPREAD_RATIO)


def split_changed_columns(before: Sequence[str], after: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the columns that were added, and those that are missing."""
    return (
        [name for name in after if name not in set(before)],
        [name for name in before if name not in set(after)],
    )


class SourceIntake:
    """Collects what is recorded of one source while its rows are written.

    If rows are compared with earlier ones, their digests go to `known`, and a sample
    of the arrays `sampled` is kept.
    """

    def __init__(
        self,
        first: int,
        inputs: int,
        *,
        columns: KeyColumns,
        known: KnownRows | None,
        sampled: Sequence[str],
    ) -> None:
        self.first, self.rows = first, 0
        self.sample = ColumnSample()
        self._ends = np.full((2, inputs), np.nan)
        self._columns, self._known, self._sampled = columns, known, sampled

    @property
    def stop(self) -> int:
        """One past the number of its last row."""
        return self.first + self.rows

    @property
    def box(self) -> tuple[tuple[float, ...], ...]:
        """Least and largest value of each input; empty if one has no finite value."""
        if not np.isfinite(self._ends).all():
            return ()
        return tuple(tuple(end) for end in self._ends.tolist())

    def add(self, rows: Mapping[str, npt.NDArray[Any]]) -> None:
        """Add rows as they are stored, an array (n, columns) for each array's name."""
        inputs = rows["x"].astype(np.float64)
        inputs[~np.isfinite(inputs)] = np.nan
        low, high = self._ends
        np.fmin(low, np.fmin.reduce(inputs, axis=0, initial=np.nan), out=low)
        np.fmax(high, np.fmax.reduce(inputs, axis=0, initial=np.nan), out=high)
        if self._known is not None:
            keys, digests = self._columns.digests(rows)
            self._known.deliver(self.stop, keys, digests)
            self.sample.add(digests, np.hstack([rows[name] for name in self._sampled]))
        self.rows += len(inputs)


def find_source(records: Sequence[SourceRecord], name: str, where: object, content: str = "") -> SourceRecord:
    """Return the source of this path, file name or content digest.

    `content` is the digest of the file that is at that path now, if there is one: it
    decides between several of the name. Raises InputError if there is none, several,
    or if it was dropped before.
    """
    candidates: list[SourceRecord] = []
    matches = (
        lambda one: one.content == name,
        lambda one: one.name == name,
        lambda one: Path(one.name).name == Path(name).name,
    )
    for is_match in matches:
        candidates = candidates or [one for one in records if is_match(one)]
    there = [one for one in candidates if not one.dropped]
    if len(there) > 1 and content:
        there = [one for one in there if one.content == content] or there
    if len(there) == 1:
        return there[0]
    if there:
        listed = "; ".join(f"{one.content} ({one.name}, rows {one.first} to {one.stop - 1})" for one in there[:5])
        raise InputError(
            f"{where}: {len(there)} sources are named {name!r}; give one by its "
            f"content instead: {listed}{'; ...' if len(there) > 5 else ''}."
        )
    if candidates:
        raise InputError(f"{where}: the rows of {name!r} were dropped before.")
    known = ", ".join(dict.fromkeys(one.name for one in records if not one.dropped))
    shown = known if len(known) < 500 else f"{known[:500]}..."
    held = f"its sources are: {shown}" if known else "it has no record of its sources"
    raise InputError(f"{where}: has no source {name!r}; {held}.")


def iterate_runs(runs: Runs, step: int) -> Iterator[tuple[int, int]]:
    """Yield (start, stop) of the runs, cut at multiples of `step`."""
    for first, stop in runs:
        start = first
        while start < stop:
            end = min(stop, (start // step + 1) * step)
            yield start, end
            start = end
