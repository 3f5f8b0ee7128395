"""Compares the sources of one call of `ingest` with what a store has already.

While the rows of a source are written, a `SourceIntake` takes what is recorded of it.
Then `Delivery.settle` says how many rows are there already, refuses a source that was
delivered before, drops earlier rows that it replaces, and says which columns vary far
more than before, or lie elsewhere, as they do in another unit.
"""

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dorff.data.dataset import Dataset
from dorff.data.known_rows import Comparison, KeyColumns, KnownRows
from dorff.data.labels import CLASSES, FILE, GROUPS, group_codes
from dorff.data.packing import FillValues
from dorff.data.pending_store import PendingStore
from dorff.data.readers import Reader
from dorff.data.resolutions import CYCLE_RESOLUTION
from dorff.data.row_runs import (
    MAX_RUNS,
    Runs,
    count_rows,
    iterate_runs,
    mark_rows,
    merge_runs,
    subtract_runs,
)
from dorff.data.row_sets import RowNumbers, RowSet
from dorff.data.source_records import SourceRecord, modification_time
from dorff.data.spreads import (
    ColumnSample,
    ColumnSpread,
    describe_change,
    describe_turn,
    spread_of,
)
from dorff.data.stores import count_unusable, open_dataset
from dorff.data.units import Conversions, is_longitude
from dorff.errors import InputError
from dorff.storage.location import locate

Rows = Mapping[str, npt.NDArray[Any]]
"""Rows as they are stored: an array (n, columns) for each array's name."""


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
        self.merged: tuple[str, int] | None = None
        """A column of the key in which rows of one key differ, once rounded."""
        self._ends = np.full((2, inputs), np.nan)
        self._all_finite = True
        self._columns, self._known, self._sampled = columns, known, sampled

    @property
    def stop(self) -> int:
        """One past the number of its last row."""
        return self.first + self.rows

    @property
    def box(self) -> tuple[tuple[float, ...], ...]:
        """Least and largest value of each input; empty if one is NaN or infinite."""
        if not self._all_finite or not self.rows:
            return ()
        return tuple(tuple(end) for end in self._ends.tolist())

    def to_record(self, *, name: str, content: str, where: str = "", left_out: int = 0) -> SourceRecord:
        """Return what is recorded of the source."""
        return SourceRecord(
            name=name,
            content=content,
            first=self.first,
            rows=self.rows,
            box=self.box,
            modified=modification_time(name),
            where=where,
            left_out=left_out,
        )

    def add(self, rows: Rows) -> None:
        """Add the next rows of the source."""
        self.extend_box(rows["x"])
        if self._known is not None:
            keys, digests = self._columns.digests(rows)
            self._known.deliver(self.stop, keys, digests)
            self.merged = self.merged or self._columns.find_merged(rows, keys)
            self.sample.add(digests, np.hstack([rows[name] for name in self._sampled]))
        self.rows += len(rows["x"])

    def extend_box(self, inputs: npt.NDArray[Any]) -> None:
        """Extend `box` to these inputs (n, columns)."""
        values = inputs.astype(np.float64)
        self._all_finite = self._all_finite and bool(np.isfinite(values).all())
        low, high = self._ends
        np.fmin(low, np.fmin.reduce(values, axis=0, initial=np.nan), out=low)
        np.fmax(high, np.fmax.reduce(values, axis=0, initial=np.nan), out=high)


class Delivery(AbstractContextManager["Delivery"]):
    """The sources of one call, compared with the rows that are there already.

    Parameters
    ----------
    folder : Path
        Where the new rows are staged; temporary files lie there too if it is local.
    pending : PendingStore
        What the rows are written to.
    store : Path, optional
        The store that is appended to; None if it is new.
    compared : bool
        Whether rows are compared. Not so for the only source of a new store, of which
        `settle` has nothing to say.
    """

    def __init__(
        self,
        folder: Path,
        pending: PendingStore,
        store: Path | None,
        *,
        compared: bool,
    ) -> None:
        self._pending, self._store = pending, store
        self._columns = find_key_columns(pending)
        self._sampled = [array for array in ("x", "y") if array in pending.columns]
        self._intakes: list[SourceIntake] = []
        self._known: KnownRows | None = None
        self._replaced: RowSet | None = None
        self.unusable_replaced = 0
        """Rows of the store with NaN or infinity that `settle` dropped for others."""
        if compared:
            if locate(folder).folders:
                self._folder = folder / ".delivered"  # no array has such a name
                self._folder.mkdir(parents=True)
            else:
                self._folder = Path(tempfile.mkdtemp(prefix="dorff-"))
            self._known = KnownRows(self._folder)

    def __exit__(self, *failure: object) -> None:
        if self._replaced is not None:
            self._replaced.close()
        if self._known is not None:
            self._known.close()
            self._folder.rmdir()
            self._known = None

    def begin_source(self, first: int) -> SourceIntake:
        """Return what takes the rows of the next source, from this row number on."""
        intake = SourceIntake(
            first,
            len(self._pending.columns["x"]),
            columns=self._columns,
            known=self._known,
            sampled=self._sampled,
        )
        self._intakes.append(intake)
        return intake

    def withdraw(
        self,
        source: int,
        reader: Reader,
        conversions: Conversions,
        absent: FillValues,
    ) -> None:
        """Let earlier rows be dropped that have the key of a row which a source leaves out.

        Parameters
        ----------
        source : int
            The source's place in the call.
        reader : Reader
            The rows that it leaves out.
        conversions, absent
            How its numbers are converted, and what stands for none, as for its other rows.
        """
        pending, columns = self._pending, self._columns
        if self._known is None or columns.absent or any(array == CLASSES for array, _ in columns.key):
            return  # of rows that are left out, labels make no new classes
        names, intake = pending.number_columns, self._intakes[source]
        labels = pending.columns.get(GROUPS, ()) if any(array == GROUPS for array, _ in columns.key) else ()
        for block in reader.blocks(names, labels):
            rows = pending.number_arrays(conversions.convert(block.numbers, names, reader.path))
            for column, run in zip(labels, block.labels, strict=True):
                rows[GROUPS] = group_codes(absent.blank_labels(run), f"{reader.path}: column {column!r}")
            intake.extend_box(rows["x"])
            self._known.withdraw(intake.first, columns.key_digests(rows))

    def settle(
        self,
        pending: PendingStore,
        *,
        again: bool,
        replace_known: bool,
    ) -> tuple[PendingStore, list[str]]:
        """Return the store with what is known of its sources, and remarks on them.

        Raises InputError for a source that seems to be there already unless `again` or
        `replace_known`, and for rows to be replaced that nothing identifies. Rows are
        not compared if the store lacks times of which the inputs have only the places
        in a cycle.
        """
        if self._known is None:
            return pending, []
        if self._columns.absent:
            return pending, self._remark_on_absent_times(replace_known)
        if replace_known:
            self._replaced = RowSet(self._folder, self._intakes[-1].stop)
        comparisons = self._compare()
        count = len(self._intakes)
        earlier, records = pending.records[:-count], pending.records[-count:]
        remarks = self._remark_on_spreads()
        for record, comparison in zip(records, comparisons, strict=True):
            remarks += remark_on_known_rows(
                record,
                comparison,
                pending.key,
                again=again,
                replace_known=replace_known,
            )
        dropped = self._drop_replaced(pending.dropped)
        if replace_known:
            self._check_told_apart(dropped)
        self.unusable_replaced = self._count_unusable(dropped)
        replaced = count_rows(dropped) - count_rows(pending.dropped)
        if replaced:
            remarks.append(f"{replaced:,} rows that were there before are dropped for those delivered")
        records = [
            replace(
                record,
                duplicates=comparison.duplicates,
                corrected=comparison.corrected,
            )
            for record, comparison in zip(records, comparisons, strict=True)
        ]
        records[-1] = replace(records[-1], replaced=replaced)
        return replace(pending, records=[*earlier, *records], dropped=dropped), remarks

    def _compare(self) -> list[Comparison]:
        """Compare the delivered rows with those of the store that could be equal."""
        assert self._known is not None
        digests = self._columns.digests
        return self._known.compare(
            [intake.stop for intake in self._intakes],
            ((numbers, *digests(rows)) for numbers, rows in self._read_earlier_rows()),
            key_identifies=bool(self._pending.key),
            met=self._replaced,
        )

    def _remark_on_absent_times(self, replace_known: bool) -> list[str]:
        """Say why rows are not compared; raises InputError if some are to be replaced."""
        time = self._columns.absent[0]
        found = f"inputs have the place of {time} in a cycle, but no column has {time}"
        remedy = f"ingest all rows anew with --also time={time}, or name a --key"
        if replace_known:
            problem = f"--replace: {found} itself, so that nothing identifies a row"
            raise InputError(f"{problem}; {remedy}.")
        effect = "so that rows which are delivered again are not found"
        return [f"{found} itself, {effect}; {remedy}", *self._remark_on_spreads()]

    def _drop_replaced(self, before: Runs) -> Runs:
        """Return the dropped rows, with those that were replaced.

        Raises InputError if they lie in too many places.
        """
        if self._replaced is None:
            return before
        dropped = self._replaced.to_runs(before, MAX_RUNS)
        if dropped is None:
            problem = f"rows to be replaced lie in more than {MAX_RUNS:,} places of it"
            remedy = "ingest all its rows into a new store"
            raise InputError(f"{self._store}: {problem}; {remedy}.")
        return dropped

    def _check_told_apart(self, dropped: Runs) -> None:
        """Raise InputError if rows that are replaced, or replace others, differ in their key.

        Values that were converted from another unit are rounded before they are
        compared, which may take different rows for one.
        """
        if not self._columns.has_rounded_key:
            return
        merged = next((intake.merged for intake in self._intakes if intake.merged), None)
        for _, rows in self._read_rows(self._replaced_runs(dropped)):
            keys, _ = self._columns.digests(rows)
            merged = merged or self._columns.find_merged(rows, keys)
        if merged is not None:
            array, place = merged
            name = self._pending.columns[array][place]
            problem = f"different rows have one {name!r} once it is rounded, as it was converted from other units"
            remedy = "give it in the units of the store, or ingest all rows anew in one unit"
            raise InputError(f"--replace: {problem}; {remedy}.")

    def _count_unusable(self, dropped: Runs) -> int:
        """Count the store's rows with NaN or infinity that are dropped now."""
        if self._store is None:
            return 0
        return count_unusable(self._store, self._pending.columns, self._replaced_runs(dropped))

    def _replaced_runs(self, dropped: Runs) -> Runs:
        """Return the store's rows that are among `dropped`, and were not before."""
        pending = self._pending
        if self._replaced is None:
            return ()
        kept = subtract_runs(0, pending.rows, dropped)
        return subtract_runs(0, pending.rows, merge_runs(kept, pending.dropped))

    def _read_earlier_rows(self) -> Iterator[tuple[RowNumbers, Rows]]:
        """Read the rows that count of sources that overlap with a delivered one."""
        if self._store is None:
            return
        pending = self._pending
        delivered = [intake.to_record(name="", content="") for intake in self._intakes]
        inputs = [place for array, place in self._columns.key if array == "x"]
        rounded = self._columns.resolutions.items()
        resolutions = {place: resolution for (array, place), resolution in rounded if array == "x"}
        skipped = []
        for record in pending.records[: -len(self._intakes)]:
            overlap = any(record.overlaps(other, inputs, resolutions) for other in delivered)
            if record.dropped or not overlap:
                skipped.append((record.first, record.stop))
        first = self._open_arrays()["x"].first
        yield from self._read_rows(subtract_runs(first, pending.rows, merge_runs(skipped, pending.dropped)))

    def _read_rows(self, runs: Runs) -> Iterator[tuple[RowNumbers, Rows]]:
        """Read these rows of the store, and their numbers, block by block."""
        if not runs:
            return
        opened = self._open_arrays()
        unit = opened["x"].unit_rows
        for start, stop in iterate_runs(runs, unit * max(1, 65536 // unit)):
            rows = {}
            for name, dataset in opened.items():
                rows[name] = dataset.exact(name, start, stop)
            yield np.arange(start, stop), rows

    def _remark_on_spreads(self) -> list[str]:
        """Say which columns seem to be in another unit than before."""
        pending = self._pending
        names = [name for array in self._sampled for name in pending.columns[array]]
        targets = pending.columns.get("y", ())
        stored = None if self._store is None else self._stored_spreads(len(names))
        sample, remarks = ColumnSample(), []
        records = pending.records[-len(self._intakes) :]
        for intake, record in zip(self._intakes, records, strict=True):
            before = sample.spreads(len(names)) if stored is None else stored
            after = intake.sample.spreads(len(names))
            for name, old, new in zip(names, before, after, strict=True):
                encoding = pending.encodings.get(name)
                is_time = encoding is not None and encoding.clock
                change = describe_change(old, new, is_target=name in targets)
                if not is_time and change is not None:
                    problem = f"column {name!r} may have another unit: {change}"
                    remarks.append(f"{record.name}: {problem}; check it")
                elif is_longitude(name, pending.column_attributes.get(name, {})) and (turn := describe_turn(old, new)):
                    problem = f"column {name!r} may count longitudes in another way: {turn}"
                    remarks.append(f"{record.name}: {problem}; check it")
            sample = sample.merge(intake.sample)
        return remarks

    def _stored_spreads(self, columns: int) -> list[ColumnSpread | None]:
        """Estimate the spreads of the store's columns from a sample of its rows."""
        opened = self._open_arrays()
        dataset = opened["x"]
        rows = min(2048, dataset.unit_rows)
        count = max(1, min(16, -(-dataset.rows // dataset.unit_rows)))
        last = max(dataset.first, dataset.n - rows)
        sampled = [np.empty((0, columns))]
        for start in np.linspace(dataset.first, last, count).astype(int).tolist():
            stop = min(start + rows, dataset.n)
            arrays = [opened[name].exact(name, start, stop) for name in self._sampled]
            values = np.hstack(arrays)
            sampled.append(values[~mark_rows(self._pending.dropped, start, stop)])
        return [spread_of(column) for column in np.vstack(sampled).T]

    def _open_arrays(self) -> dict[str, Dataset]:
        """Open each array of the store as a data set of its own."""
        store = self._store
        assert store is not None
        arrays = self._pending.columns
        return {name: open_dataset(store, inputs=name, targets=None) for name in arrays}


def find_key_columns(pending: PendingStore) -> KeyColumns:
    """Return the columns that identify a row, and all columns.

    A row is identified by the columns that a user declared, else by the inputs, the
    times whose places in a cycle they are, and the group. Raises InputError if a
    declared column is not ingested.
    """
    row: list[tuple[str, int]] = []
    places: dict[str, tuple[str, int]] = {}
    for array, names in pending.columns.items():
        if array == GROUPS and tuple(names) == (FILE,):
            continue  # the same rows may come in another file
        columns = [(array, place) for place in range(len(names))]
        row += columns
        places |= zip(names, columns, strict=True)
    cycles = [encoding for encoding in pending.encodings.values() if encoding.kind == "cycle"]
    rounded = pending.resolutions | {column: CYCLE_RESOLUTION for encoding in cycles for column in encoding.columns}
    resolutions = {places[name]: rounded[name] for name in rounded if name in places}
    if not pending.key:
        times = [encoding.column for encoding in cycles]
        key = [column for column in row if column[0] in ("x", GROUPS)]
        key += [places[time] for time in times if time in places]
        absent = [time for time in times if time not in places]
        return KeyColumns(
            key=tuple(dict.fromkeys(key)),
            row=tuple(row),
            absent=tuple(dict.fromkeys(absent)),
            resolutions=resolutions,
        )
    named: list[str] = []
    for name in pending.key:
        encoding = pending.encodings.get(name)
        named += (name,) if encoding is None else encoding.columns
    if unknown := [name for name in named if name not in places]:
        held = ", ".join(list(places)[:20])
        expected = f"wanted columns that are ingested, got {unknown[0]!r}"
        remedy = "name it in --also too, or leave it out"
        raise InputError(f"--key: {expected}; the columns are: {held}; {remedy}.")
    return KeyColumns(
        key=tuple(places[name] for name in named),
        row=tuple(row),
        resolutions=resolutions,
    )


def remark_on_known_rows(
    record: SourceRecord,
    comparison: Comparison,
    key: Sequence[str],
    *,
    again: bool,
    replace_known: bool,
) -> list[str]:
    """Say how many rows of a source are there already.

    Raises InputError if it seems to be an earlier source, unless `again` or
    `replace_known`, and if its rows are to replace others but nothing identifies them.
    """
    by = ", ".join(key) if key else "inputs"
    found = f"{comparison.duplicates:,} of {comparison.rows:,} rows are there already"
    if comparison.corrected:
        corrected = f"{comparison.corrected:,} have the {by} of a row there"
        found += f", and {corrected}, but other values"
    has_known = comparison.known_keys or comparison.withdrawn_keys
    if replace_known and has_known and not comparison.is_identified:
        problem = f"several rows have the same {by}, so that none can be replaced"
        remedy = "name columns that identify a row by --key"
        raise InputError(f"{record.name}: {found}; {problem}; {remedy}.")
    remarks = []
    if key and comparison.repeated_keys:
        repeated = f"{comparison.repeated_keys:,} of {comparison.rows:,} rows"
        remarks.append(f"{record.name}: {repeated} have the {by} of a row before in it; all are kept")
    if comparison.withdrawn_keys:
        withdrawn = f"--where leaves out {comparison.withdrawn_keys:,} rows that have the {by} of a row there"
        remarks.append(f"{record.name}: {withdrawn}, which is dropped")
    if not (comparison.duplicates or comparison.corrected):
        return remarks
    chosen = again or replace_known
    if comparison.is_redelivery and not chosen:
        problem = "it seems to be an earlier source, delivered again"
        options = "--replace to have these rows in place of those, --again to have both"
        remedy = f"give {options}, or leave the source out"
        raise InputError(f"{record.name}: {found}: {problem}; {remedy}.")
    if not chosen:
        found += "; both are kept: to have the new ones in their place, `dorff drop` this source, then give it again "
        found += "with --replace"
    return [*remarks, f"{record.name}: {found}"]
