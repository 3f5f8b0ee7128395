"""Finds delivered rows that a store, or an earlier source, has already.

Rows are compared by 64-bit digests of their key, the columns that identify a row, and
of all their columns. Memory is bounded whatever the number of rows: digests lie in
temporary files, split by their keys, each of which is compared in memory.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from dorff.data.row_runs import Runs, runs_of_rows

Digests = npt.NDArray[np.uint64]
RowNumbers = npt.NDArray[np.int64]

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

_ENTRY: Final = np.dtype([("key", "<u8"), ("row", "<u8"), ("number", "<i8")])


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


@dataclass(frozen=True, kw_only=True)
class KeyColumns:
    """The columns, as (array, place) pairs, that identify a row, and all columns."""

    key: tuple[tuple[str, int], ...]
    row: tuple[tuple[str, int], ...]

    def digests(self, rows: Mapping[str, npt.NDArray[Any]]) -> tuple[Digests, Digests]:
        """Return digests of the keys and of the whole rows; arrays are (n, columns)."""
        key = digest_rows([rows[array][:, place] for array, place in self.key])
        row = digest_rows([rows[array][:, place] for array, place in self.row])
        return key, row


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
        self._files: list[FileIO] = []
        self._seen, self._seen_rows = np.zeros(0, bool), np.zeros(0, bool)
        self._shift = np.uint64(0)

    def deliver(self, number: int, keys: Digests, rows: Digests) -> None:
        """Add delivered rows, the first of which has this number in the store."""
        self._first = number if self._first is None else self._first
        self._write(self._spill, keys, rows, number + np.arange(len(keys)))
        self._count += len(keys)

    def offer(
        self,
        numbers: RowNumbers,
        keys: Digests,
        rows: Digests,
        *,
        declared: bool,
    ) -> None:
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

    def compare(
        self,
        stops: Sequence[int],
        *,
        key_identifies: bool,
    ) -> tuple[list[Comparison], Runs]:
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

    def _partition(self, keys: Digests, rows: Digests, numbers: RowNumbers) -> None:
        part = keys % np.uint64(len(self._files))
        for j, file in enumerate(self._files):
            here = part == j if len(self._files) > 1 else slice(None)
            self._write(file, keys[here], rows[here], numbers[here])

    def _write(
        self,
        file: FileIO,
        keys: Digests,
        rows: Digests,
        numbers: RowNumbers,
    ) -> None:
        entries = np.empty(len(keys), _ENTRY)
        entries["key"], entries["row"], entries["number"] = keys, rows, numbers
        content = memoryview(entries.tobytes())
        while content:  # NumPy's own writing does not say that the disk is full
            content = content[file.write(content) :]


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


@dataclass
class _Counts:
    """What is known of one source's rows."""

    rows: int = 0
    distinct_rows: int = 0
    distinct_keys: int = 0
    duplicates: int = 0
    known_keys: int = 0
    repeats: bool = False


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
    stops: RowNumbers,
    counts: list[_Counts],
) -> RowNumbers:
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
    met: RowNumbers


def _match_earlier(
    entries: npt.NDArray[Any],
    name: str,
    starts: RowNumbers,
    stops: RowNumbers,
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
