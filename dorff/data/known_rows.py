"""Finds delivered rows that a store, or an earlier source, has already.

Rows are compared by 64-bit digests of their key, the columns that identify a row, and
of all their columns. Memory is bounded whatever the number of rows, and however often
keys or rows are repeated: digests of delivered rows lie in temporary files, split by
their values into partitions; a `_DigestTable` of one partition at a time has each
digest once for each source, and earlier rows are matched with it block by block.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import chain
from pathlib import Path
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt

from dorff.data.entry_files import Entries, EntryFiles
from dorff.data.resolutions import CONVERSION_ERROR, Resolution
from dorff.data.row_sets import RowNumbers, RowSet

Digests = npt.NDArray[np.uint64]
Mask = npt.NDArray[np.bool_]
EarlierRows = Iterable[tuple[RowNumbers, Digests, Digests]]
"""Blocks of earlier rows: their numbers, the digests of their keys and of the rows."""
NumberedDigests = Iterator[tuple[Digests, RowNumbers]]
"""Blocks of digests, and the numbers of their rows."""

PARTITION_ROWS: Final = 2**19
"""Delivered rows of one partition."""

MAX_PARTITIONS: Final = 192
"""Partitions, each of which is two temporary files: of keys and of rows."""

MAX_FILTER_BITS: Final = 26
"""Most address bits of the table that skips earlier rows of other keys."""

REFUSED_SHARE: Final = 0.5
"""Share of a source's rows, known already, from which the source is refused."""

REFUSED_ROWS: Final = 10
"""Known rows of a source below which it is never refused."""

DISTINCT_SHARE: Final = 0.9
"""Share of distinct rows below which equal rows are ordinary in a source."""

_ROW_ENTRY: Final = np.dtype([("key", "<u8"), ("row", "<u8"), ("number", "<i8")])
_DIGEST_ENTRY: Final = np.dtype([("digest", "<u8"), ("number", "<i8")])
_TABLE_ENTRY: Final = np.dtype([("digest", "<u8"), ("source", "<i4"), ("rows", "<i8")])


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Rows of one source that were in the store, or in an earlier source, already.

    `known_keys` have the key of an earlier row, `duplicates` are equal to one in all
    columns. `corrected` have the key of an earlier row and other values; 0 where keys
    do not identify rows. `withdrawn_keys` of earlier rows are those of rows that the
    source leaves out. `repeated_keys` of its rows are those of a row before in the
    source. `is_identified` says whether keys identify rows, `is_declared` whether a
    user said so, `is_distinct` whether hardly two rows of the source are equal.
    """

    rows: int
    known_keys: int
    withdrawn_keys: int
    repeated_keys: int
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


@dataclass(frozen=True, kw_only=True)
class KeyColumns:
    """The columns, as (array, place) pairs, that identify a row, and all columns.

    `absent` are times that the columns lack: inputs have only their places in a cycle,
    when:day say, so that rows of different days may be equal. Columns are compared
    exactly, unless `resolutions` say how closely.
    """

    key: tuple[tuple[str, int], ...]
    row: tuple[tuple[str, int], ...]
    absent: tuple[str, ...] = ()
    resolutions: Mapping[tuple[str, int], Resolution] = field(default_factory=dict)

    @property
    def has_rounded_key(self) -> bool:
        """Whether some column of the key is not compared exactly."""
        return not self.resolutions.keys().isdisjoint(self.key)

    def digests(self, rows: Mapping[str, npt.NDArray[Any]]) -> tuple[Digests, Digests]:
        """Return digests of the keys and of the whole rows; arrays are (n, columns)."""
        values = {column: self._compared(column, rows) for column in self.row}
        key = digest_rows([values[column] for column in self.key])
        row = digest_rows([values[column] for column in self.row])
        return key, row

    def key_digests(self, rows: Mapping[str, npt.NDArray[Any]]) -> Digests:
        """Return digests of the keys alone; `rows` may lack arrays that have none."""
        return digest_rows([self._compared(column, rows) for column in self.key])

    def _compared(self, column: tuple[str, int], rows: Mapping[str, npt.NDArray[Any]]) -> npt.NDArray[Any]:
        """Return a column as it is compared, (n,)."""
        array, place = column
        values = rows[array][:, place]
        if (resolution := self.resolutions.get(column)) is None:
            return values
        return resolution.round(values.astype(np.float64))

    def find_merged(self, rows: Mapping[str, npt.NDArray[Any]], keys: Digests) -> tuple[str, int] | None:
        """Return a column in which rows of one key differ by more than conversion explains.

        Rounding has taken such rows for one. None if there is no such column.
        """
        if not len(keys) or not self.has_rounded_key:
            return None
        order = np.argsort(keys)
        begins = np.flatnonzero(np.diff(keys[order], prepend=~keys[order[:1]]))
        for column in self.key:
            if (resolution := self.resolutions.get(column)) is None:
                continue
            values = rows[column[0]][order, column[1]].astype(np.float64)
            low, high = np.minimum.reduceat(values, begins), np.maximum.reduceat(values, begins)
            if np.any(high - low > CONVERSION_ERROR * resolution.step(high)):
                return column
        return None


class KnownRows:
    """Finds delivered rows that are in the store, or in an earlier source, already.

    `deliver` takes the digests of delivered rows, in order, and `withdraw` those of
    rows that a source leaves out; then `compare` takes those of earlier rows, and
    returns the result.

    Parameters
    ----------
    folder : Path
        Where temporary files lie.
    partition_rows, max_partitions : int
        Delivered rows that are compared in memory at a time, and the most parts that
        more of them are split into.
    max_filter_bits : int
        Most bits of the address in the table that skips earlier rows of other keys.

    The result depends on none of the limits.
    """

    def __init__(
        self,
        folder: Path,
        *,
        partition_rows: int = PARTITION_ROWS,
        max_partitions: int = MAX_PARTITIONS,
        max_filter_bits: int = MAX_FILTER_BITS,
    ) -> None:
        self._folder = folder
        self._max_filter_bits = max_filter_bits
        self._partition_rows, self._max_partitions = partition_rows, max_partitions
        self._delivered = EntryFiles(folder, "delivered", _ROW_ENTRY, 1)
        self._withdrawn = EntryFiles(folder, "withdrawn", _DIGEST_ENTRY, 1)
        self._count = 0

    def deliver(self, number: int, keys: Digests, rows: Digests) -> None:
        """Add delivered rows, the first of which has this number in the store."""
        entries = np.empty(len(keys), _ROW_ENTRY)
        entries["key"], entries["row"] = keys, rows
        entries["number"] = number + np.arange(len(keys))
        self._delivered.add(entries["number"], entries)
        self._count += len(keys)

    def withdraw(self, number: int, keys: Digests) -> None:
        """Add the keys of rows that a source leaves out; `number` is its first row's."""
        entries = np.empty(len(keys), _DIGEST_ENTRY)
        entries["digest"], entries["number"] = keys, number
        self._withdrawn.add(entries["number"], entries)
        self._count += len(keys)

    def compare(
        self,
        stops: Sequence[int],
        earlier: EarlierRows,
        *,
        key_identifies: bool,
        met: RowSet | None = None,
    ) -> list[Comparison]:
        """Return a comparison for each source.

        Parameters
        ----------
        stops : sequence of int
            Source number k has the rows before `stops[k]` that no source before has.
        earlier : EarlierRows
            Rows of the store that could be equal to delivered ones.
        key_identifies : bool
            Whether equal keys mean the same row by declaration; if not, they do where
            neither the source nor the rows of its keys repeat one.
        met : RowSet, optional
            Takes the numbers of rows, of the store and of sources, whose key a later
            source has again, or leaves out.
        """
        sources = _Sources(np.array(stops))
        keys, rows = _Totals.zero(len(stops)), _Totals.zero(len(stops))
        if self._count <= self._partition_rows:
            self._count_at_once(keys, rows, sources, earlier, met)
        else:
            self._count_in_parts(keys, rows, sources, earlier, met)
        numbers = range(len(stops))
        return [_compare_source(keys, rows, k, key_identifies) for k in numbers]

    def close(self) -> None:
        """Remove the temporary files."""
        self._delivered.close()
        self._withdrawn.close()

    def _count_at_once(
        self,
        keys: "_Totals",
        rows: "_Totals",
        sources: "_Sources",
        earlier: EarlierRows,
        met: RowSet | None,
    ) -> None:
        """Count known rows by tables of all delivered digests."""
        has_delivered = self._make_filter()
        key_table = _DigestTable(self._read_delivered("key"), sources, self._read_withdrawn())
        row_table = _DigestTable(self._read_delivered("row"), sources)
        for numbers, key_digests, row_digests in earlier:
            maybe = has_delivered(key_digests)
            known = key_table.match(key_digests[maybe])
            row_table.match(row_digests[maybe][known])  # equal rows have equal keys
            if met is not None:
                met.add(numbers[maybe][known])
        if met is not None:
            key_table.add_delivered_again(self._read_delivered("key"), met)
        keys.add(key_table.totals())
        rows.add(row_table.totals())

    def _count_in_parts(
        self,
        keys: "_Totals",
        rows: "_Totals",
        sources: "_Sources",
        earlier: EarlierRows,
        met: RowSet | None,
    ) -> None:
        """Count known rows by a table of a part of the digests at a time."""
        size = self._partition_rows
        count = min(-(-self._count // size), self._max_partitions)
        with (
            EntryFiles(self._folder, "keys", _DIGEST_ENTRY, count) as key_files,
            EntryFiles(self._folder, "rows-of-keys", _DIGEST_ENTRY, count) as row_files,
            EntryFiles(self._folder, "withdrawn-keys", _DIGEST_ENTRY, count) as withdrawn_files,
        ):
            for entries in self._delivered.read(0, size):
                _split(key_files, entries["key"], entries["number"])
                _split(row_files, entries["row"], entries["number"])
            for digests, numbers in self._read_withdrawn():
                _split(withdrawn_files, digests, numbers)
            key_ends, row_ends = list(key_files.sizes), list(row_files.sizes)
            has_delivered = self._make_filter()
            for numbers, key_digests, row_digests in earlier:
                maybe = has_delivered(key_digests)
                _split(key_files, key_digests[maybe], numbers[maybe])
                _split(row_files, row_digests[maybe], numbers[maybe])
            del has_delivered

            for part in range(count):
                files, end = (key_files, part, size), key_ends[part]
                withdrawn = _read_part(withdrawn_files, part, size)
                table = _DigestTable(_read_part(*files, stop=end), sources, withdrawn)
                for digests, numbers in _read_part(*files, start=end):
                    known = table.match(digests)
                    if met is not None:
                        met.add(numbers[known])
                if met is not None:
                    table.add_delivered_again(_read_part(*files, stop=end), met)
                keys.add(table.totals())

                files, end = (row_files, part, size), row_ends[part]
                table = _DigestTable(_read_part(*files, stop=end), sources)
                for digests, _ in _read_part(*files, start=end):
                    table.match(digests)
                rows.add(table.totals())

    def _make_filter(self) -> "_DigestFilter":
        """Return a filter that passes the keys that were delivered or withdrawn."""
        wanted = math.ceil(math.log2(4 * self._count + 2))
        has_delivered = _DigestFilter(min(wanted, self._max_filter_bits))
        for digests, _ in chain(self._read_delivered("key"), self._read_withdrawn()):
            has_delivered.add(digests)
        return has_delivered

    def _read_delivered(self, name: str) -> NumberedDigests:
        """Read the delivered digests `name`, and the numbers of their rows."""
        for entries in self._delivered.read(0, self._partition_rows):
            yield entries[name], entries["number"]

    def _read_withdrawn(self) -> NumberedDigests:
        """Read the digests of withdrawn keys, and a number of a row of their source."""
        return _read_part(self._withdrawn, 0, self._partition_rows)


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


@dataclass(frozen=True)
class _Sources:
    """The delivered sources: number k has the rows before `stops[k]` that are left."""

    stops: RowNumbers

    def find(self, numbers: RowNumbers) -> RowNumbers:
        """Return the source of each row; the last one of a row that none has."""
        sources = np.searchsorted(self.stops, numbers, side="right")
        return np.minimum(sources, len(self.stops) - 1)


@dataclass(kw_only=True)
class _Totals:
    """Rows of each source by one of their digests, (sources,).

    `known` have the digest of an earlier row, `repeated` of two; `distinct` is how many
    digests the source has. `withdrawn` and `withdrawn_repeated` are digests of no row
    of the source but of one it leaves out, which an earlier row, or two, have.
    """

    rows: RowNumbers
    distinct: RowNumbers
    known: RowNumbers
    repeated: RowNumbers
    withdrawn: RowNumbers
    withdrawn_repeated: RowNumbers

    @classmethod
    def zero(cls, sources: int) -> Self:
        """Return totals of no rows."""
        return cls(**{total.name: np.zeros(sources, np.int64) for total in fields(cls)})

    def add(self, other: "_Totals") -> None:
        """Add the totals of further digests."""
        for total in fields(self):
            getattr(self, total.name)[:] += getattr(other, total.name)


def _compare_source(
    keys: _Totals,
    rows: _Totals,
    source: int,
    declared: bool,
) -> Comparison:
    """Return what the totals mean for one source."""
    count, known = int(rows.rows[source]), int(keys.known[source])
    duplicates = int(rows.known[source])
    is_repeated = bool(keys.repeated[source] or keys.withdrawn_repeated[source])
    is_unique = keys.distinct[source] == count and not is_repeated
    is_identified = declared or bool(is_unique)
    return Comparison(
        rows=count,
        known_keys=known,
        withdrawn_keys=int(keys.withdrawn[source]),
        repeated_keys=count - int(keys.distinct[source]),
        duplicates=duplicates,
        corrected=known - duplicates if is_identified else 0,
        is_identified=is_identified,
        is_declared=declared,
        is_distinct=bool(rows.distinct[source] >= DISTINCT_SHARE * count),
    )


class _DigestFilter:
    """Passes all digests that were added, and of others the fewer the more bits."""

    def __init__(self, bits: int) -> None:
        self._added = np.zeros(2**bits, bool)
        self._shift = np.uint64(64 - bits)

    def add(self, digests: Digests) -> None:
        """Let these digests pass."""
        self._added[digests >> self._shift] = True

    def __call__(self, digests: Digests) -> Mask:
        passed: Mask = self._added[digests >> self._shift]
        return passed


class _DigestTable:
    """Delivered digests, each once for each source that has it, and known rows.

    Digests that a source withdraws are those of 0 rows. Memory is that of distinct
    digests and of one block of rows.
    """

    def __init__(
        self,
        blocks: NumberedDigests,
        sources: _Sources,
        withdrawn: Iterable[tuple[Digests, RowNumbers]] = (),
    ) -> None:
        self._sources = sources
        entries = np.empty(0, _TABLE_ENTRY)
        for rows, part in ((1, blocks), (0, withdrawn)):
            for digests, numbers in part:
                block = np.empty(len(digests), _TABLE_ENTRY)
                block["digest"], block["rows"] = digests, rows
                block["source"] = sources.find(numbers)
                entries = _join_equal(np.concatenate([entries, block]))
        self._entries = entries
        # Entries of one digest form a group, in order of sources.
        groups = np.unique(entries["digest"], return_index=True, return_counts=True)
        self._digests, self._begins, self._sizes = groups
        self._earlier = np.zeros(len(self._digests), np.int64)

    def match(self, digests: Digests) -> Mask:
        """Take earlier rows, and return which of them have a delivered digest."""
        places = self._find(digests)
        known = places >= 0
        self._earlier += np.bincount(places[known], minlength=len(self._earlier))
        return known

    def add_delivered_again(self, blocks: NumberedDigests, rows: RowSet) -> None:
        """Add to `rows` the delivered rows whose digest a later source has again."""
        last = self._entries["source"][self._begins + self._sizes - 1]
        for digests, numbers in blocks:
            is_again = last[self._find(digests)] > self._sources.find(numbers)
            rows.add(numbers[is_again])

    def totals(self) -> _Totals:
        """Return the totals of its digests."""
        entries, count = self._entries, len(self._sources.stops)
        before = np.cumsum(entries["rows"]) - entries["rows"]
        group_before = np.repeat(before[self._begins], self._sizes)
        earlier = np.repeat(self._earlier, self._sizes) + before - group_before

        def sum_rows(chosen: Mask) -> RowNumbers:
            total = np.zeros(count, np.int64)
            np.add.at(total, entries["source"][chosen], entries["rows"][chosen])
            return total

        def count_digests(chosen: Mask) -> RowNumbers:
            return np.bincount(entries["source"][chosen], minlength=count)

        is_withdrawn = entries["rows"] == 0
        return _Totals(
            rows=sum_rows(earlier >= 0),
            distinct=count_digests(~is_withdrawn),
            known=sum_rows(earlier > 0),
            repeated=sum_rows(earlier > 1),
            withdrawn=count_digests(is_withdrawn & (earlier > 0)),
            withdrawn_repeated=count_digests(is_withdrawn & (earlier > 1)),
        )

    def _find(self, digests: Digests) -> RowNumbers:
        """Return the place of each digest; -1 where it was not delivered."""
        if not len(self._digests):
            return np.full(len(digests), -1)
        places = np.searchsorted(self._digests, digests)
        places[places == len(self._digests)] = 0
        return np.where(self._digests[places] == digests, places, -1)


def _join_equal(entries: Entries) -> Entries:
    """Return table entries in order, equal digests of a source joined."""
    order = np.lexsort((entries["source"], entries["digest"]))
    entries = entries[order]
    digests, sources = entries["digest"], entries["source"]
    begins = np.ones(len(entries), bool)
    begins[1:] = (digests[1:] != digests[:-1]) | (sources[1:] != sources[:-1])
    joined = entries[begins]
    joined["rows"] = np.add.reduceat(entries["rows"], np.flatnonzero(begins))
    return joined


def _split(files: EntryFiles, digests: Digests, numbers: RowNumbers) -> None:
    """Add digests and row numbers to files, split by the digests."""
    entries = np.empty(len(digests), _DIGEST_ENTRY)
    entries["digest"], entries["number"] = digests, numbers
    files.add((digests % np.uint64(len(files.sizes))).astype(np.int64), entries)


def _read_part(
    files: EntryFiles,
    part: int,
    block: int,
    start: int = 0,
    stop: int | None = None,
) -> NumberedDigests:
    """Read digests and row numbers of one file."""
    for entries in files.read(part, block, start, stop):
        yield entries["digest"], entries["number"]
