"""One leaf: read its rows, featurize, accumulate, check, write the partial moments, leave a receipt."""

import errno
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import replace
from itertools import chain, pairwise
from socket import gethostname
from typing import Any, Final, Self, TypeVar

import numpy as np

from dorff.data import Dataset, RowBlock
from dorff.errors import CorruptError, IncompleteError, InputError, StoppedError
from dorff.errors.stopping import stop_requested
from dorff.loops import scan
from dorff.moments import FloatArray, Kind, patterns_of, processor_kind
from dorff.passes.blocks import BlockSums, LatticeSums, Leaf, RowSums
from dorff.passes.frozen import Pass, Place, frozen_hash, load_pass
from dorff.storage.location import locate
from dorff.store import Receipt, merge_moments, save_moments
from dorff.store.receipts import Checkpoint

T = TypeVar("T")
TRIES: Final = 3  # of a leaf whose rows change while they are read
# One thread for all leaves: CPython can hang for ever where it starts one and memory has just run out.
_reader: Final = ThreadPoolExecutor(max_workers=1, thread_name_prefix="dorff-read")
_SAME: Final = ("plan", "number", "start", "stop", "stamp")  # what a checkpoint must have in common with its task


class Stage(Place, ABC):
    """Work that is done leaf by leaf, each of which leaves a receipt, in the place where it is kept: what it is of is
    in that folder, so that a task carries its class and its place alone (`run_leaf`)."""

    @classmethod
    def at(cls, place: Place) -> Self:
        """The same place, for work of this kind."""
        return cls(place.directory, place.hash)

    @abstractmethod
    def leaf(self, source: Any, leaf: Leaf) -> Receipt:
        """Do one leaf of the source, write what comes of it, and leave (and return) the receipt."""


class Summand(Stage):
    """A kind of sums over rows."""

    @abstractmethod
    def opened(self) -> tuple[Pass, RowSums]:
        """The pass whose rows are read, and empty sums to add them to. InputError where files are damaged."""

    def leaf(self, source: Any, leaf: Leaf) -> Receipt:
        """Sum one leaf of the source, write the sums, and leave (and return) the receipt (`sum_leaf`)."""
        for place in map(locate, (self.directory.parent, source.path)):
            if place.folders and not place.exists():
                raise FileNotFoundError(errno.ENOENT, f"{gethostname()} does not see it, as all workers have to", place)
        return sum_leaf(self, *self.opened(), source, leaf)


class PassSums(Summand):
    """The sums that a pass's spec names, of [F | 1 | Y - y0]: Gram matrices, triangles of QR, or of a lattice's
    features sums of exponentials."""

    def opened(self) -> tuple[Pass, RowSums]:
        frozen = load_pass(self.directory, self.hash)
        spec = frozen.spec
        if spec.sums is Kind.TOEPLITZ:
            options = {"block_rows": spec.block_rows, "tolerance": spec.sampler["tolerance"]}
            constants = frozen.constants
            return frozen, LatticeSums(frozen.features, constants.y0, class_weight=constants.class_weight, **options)
        return frozen, block_sums(frozen, block_rows=spec.block_rows, kind=spec.sums, precision=spec.precision)


def block_sums(frozen: Pass, **options: Any) -> BlockSums:
    """Empty sums of a pass's features and targets, with these `options` of `BlockSums`."""
    constants = frozen.constants
    return BlockSums(frozen.features, constants.y0, class_weight=constants.class_weight, **options)


def run_leaf(kind: type[Stage], directory: str, name: str, source: Any, leaf: tuple[int, int, int]) -> Receipt:
    """Do a leaf (its number, first row and the row behind its last) of the stage in a folder of this name."""
    return kind(locate(directory), name).leaf(source, Leaf(*leaf))


def sum_leaf(place: Place, frozen: Pass, sums: RowSums, dataset: Dataset, leaf: Leaf) -> Receipt:
    """Add one leaf's rows to `sums`, which are empty, write these to their place, and leave (and return) the receipt.
    Goes on from a checkpoint of the same rows, to the bit. Rows that change while they are read are read again. Raises
    InputError: rows that are not what was wanted; StoppedError: it was asked to stop, and has left a checkpoint;
    CorruptError: a number in the sums changed in memory, or was computed wrongly; IncompleteError: the rows changed
    each time they were read."""

    def attempt() -> _RowRun:
        sums.clear()
        run = _RowRun(place, frozen, sums, dataset.counted(), leaf)
        run.add_all()
        return run

    what = f"{dataset.path}: rows {leaf.start}..{leaf.stop - 1}"
    run, _ = unchanged(lambda: dataset.stamp(leaf.start, leaf.stop), attempt, what)
    return run.done()


def unchanged(stamp: Callable[[], str], work: Callable[[], T], what: str) -> tuple[T, str]:
    """What `work` makes of some files, and their fingerprint `stamp`, the same before and after. InputError as `work`,
    unless files were torn then; IncompleteError where they changed each time they were read: `what` are they?"""
    for _ in range(TRIES):
        before, wrong = stamp(), None
        try:
            result = work()
        except InputError as error:
            wrong = error
        if stamp() == before:
            if wrong is not None:
                raise wrong
            return result, before
    raise IncompleteError(f"{what} changed while they were read, {TRIES} times; run the job again when nothing writes")


class LeafRun:
    """A leaf under way: its `sums`, and in `at` all that its receipt and checkpoint say of what is summed so far, but
    for seconds. Goes on from a checkpoint of the same task, to the bit; `fresh` is that of one not begun."""

    def __init__(self, place: Place, frozen: Pass, sums: RowSums, fresh: Checkpoint) -> None:
        self._began = time.perf_counter()
        self.place, self.frozen, self.sums = place, frozen, sums
        self.at = self._resumed(fresh)

    def _resumed(self, fresh: Checkpoint) -> Checkpoint:
        checkpoint = Checkpoint.load(self.place.checkpoints, fresh.number)
        if checkpoint is None or any(getattr(checkpoint, name) != getattr(fresh, name) for name in _SAME):
            return fresh
        fits = checkpoint.start < checkpoint.row < checkpoint.stop
        fits = fits and len(checkpoint.low) == len(checkpoint.high) == len(fresh.low)
        if fits and checkpoint.restore(self.place.checkpoints, self.sums.of):
            return checkpoint
        self.sums.clear()
        return fresh

    def now(self) -> Checkpoint:
        """All that is summed, and how long it took."""
        at = self.at  # what it says of seconds is of before
        seconds = at.seconds + time.perf_counter() - self._began
        syrk_seconds = at.syrk_seconds + self.sums.syrk_seconds
        return replace(at, seconds=seconds, syrk_seconds=syrk_seconds, processor=processor_kind())

    def pause(self, what: str, done: str) -> None:
        """StoppedError, with a checkpoint left, where it was asked for and something is left to be done."""
        if self.at.row < self.at.stop and stop_requested():
            self.now().save(self.place.checkpoints, self.sums.sums)
            raise StoppedError(f"{what}: asked to stop, after {done}; what is summed is kept, run the job again")

    def finish(self, what: str, large: str) -> Receipt:
        """Check the sums, write them, and leave the receipt instead of a checkpoint. CorruptError where sums are not
        of what was added; InputError, `large`, where they are, but overflow."""
        adders = self.sums.sums.values()
        if not all(adder.intact() for adder in adders):
            Checkpoint.remove(self.place.checkpoints, self.at.number)  # it may hold the same
            remedy = "they are made again, and if this comes back test the machine it was done on"
            raise CorruptError(f"{what}: the sums are not those of the rows; memory or processor faulty; {remedy}")
        if any(adder.overflowed() for adder in adders):
            raise InputError(large)
        frozen, receipt = self.frozen, self.now().receipt()
        if frozen_hash(frozen.directory) != frozen.hash:  # the run was refused elsewhere, and what it had made removed
            raise InputError(f"{frozen.directory}: the frozen plan is gone or another; run the job again")
        save_moments(self.place.node(0, receipt.number, receipt.key), self.sums.sums)
        self.sums.keep_spare()
        receipt = replace(receipt, seconds=self.now().seconds)
        receipt.save(self.place.receipts)
        Checkpoint.remove(self.place.checkpoints, receipt.number)
        return receipt


class _RowRun(LeafRun):
    """One of rows, read block by block."""

    def __init__(self, place: Place, frozen: Pass, sums: RowSums, dataset: Dataset, leaf: Leaf) -> None:
        scan(np.zeros((2, dataset.d)), *np.zeros((2, dataset.d)))  # loaded while there is memory for it
        self._dataset = dataset
        stamp = dataset.stamp(leaf.start, leaf.stop)
        super().__init__(place, frozen, sums, fresh_checkpoint(place, leaf, stamp, dataset.d))
        self._low, self._high = np.array(self.at.low), np.array(self.at.high)

    def add_all(self) -> None:
        """Add the rows that are left, block by block; StoppedError at a block's end where it was asked for."""
        at, blocks = self.at, self.sums.block_rows
        for read in _read_ahead(self._dataset, (at.start, at.row, at.stop), self.frozen.spec.read_rows):
            for first in range(0, len(read), blocks):
                self._add(read[first : first + blocks])
                self.pause(f"leaf {at.number}", f"row {self.at.row - 1} of {at.start}..{at.stop - 1}")

    def _add(self, block: RowBlock) -> None:
        at, folds = self.at, self.frozen.folds
        checksums = block.checksums(at.checksums)
        rows, partial = usable(self._dataset, self.frozen, block)
        scan(rows.X, self._low, self._high)
        if folds.by_rows and folds.count > 1:
            fold_of = folds.of(rows)
            for fold in range(folds.count):
                part = rows[fold_of == fold]
                self.sums.add(part.X, part.Y, fold, partial=partial, weights=part.weights)
        else:
            self.sums.add(rows.X, rows.Y, folds.of_leaf(at.number), partial=partial, weights=rows.weights)
        at = replace(at, row=at.row + len(block), checksums=tuple(checksums), rows_used=at.rows_used + len(rows))
        if self.frozen.spec.nan == "unlabelled":
            at = replace(at, rows_unlabelled=at.rows_unlabelled + block.unlabelled())
        self.at = at

    def now(self) -> Checkpoint:
        read, low, high = self.at.rows_read + self._dataset.reads.rows, self._low.tolist(), self._high.tolist()
        return replace(super().now(), rows_read=read, low=tuple(low), high=tuple(high))

    def done(self) -> Receipt:
        """The leaf's end: see `finish`."""
        at, kind, limit, instead = self.at, "float64", "1e150", ""
        if self.frozen.spec.mixed:
            kind, limit, instead = "float32", "1e18", ", or set features.precision: double"
        what = f"rows {at.start}..{at.stop - 1}"
        large = f"{self._dataset.path}: {what}: the sums overflow {kind}; an input, a target or the root of a weight "
        large += f"is larger than {limit}: rescale the column{instead}"
        return self.finish(f"leaf {at.number} ({what})", large)


def fresh_checkpoint(place: Place, leaf: Leaf, stamp: str, d: int) -> Checkpoint:
    """That of a leaf of which nothing is summed: rows of d inputs, `stamp` names what they are."""
    low, high = (float("inf"),) * d, (float("-inf"),) * d
    return Checkpoint(place.hash, leaf.number, leaf.start, leaf.stop, stamp, row=leaf.start, low=low, high=high)


def merge_nodes(left: str, right: str, into: str, kind: type[Summand]) -> bool:
    """Add two node files into a third; False where one of them is missing or damaged. The worker has imported what
    sums of this `kind` are made of, as it was handed the class."""
    first, second = locate(left), locate(right)
    return first.appears() and second.appears() and merge_moments(first, second, locate(into))


def _read_ahead(dataset: Dataset, at: tuple[int, int, int], rows: int) -> Iterator[RowBlock]:
    """Each run of `rows` of (first, first wanted, end); the next one is read while this one is worked on."""
    start, row, stop = at
    return read_ahead(dataset, pairwise([row, *range(start + ((row - start) // rows + 1) * rows, stop, rows), stop]))


def read_ahead(dataset: Dataset, runs: Iterable[tuple[int, int]]) -> Iterator[RowBlock]:
    """The rows (start, stop) of each run, in this order; the next one is read while this one is worked on."""
    waiting: Future[RowBlock] | None = None
    try:
        for run in chain(runs, [None]):
            read = None if waiting is None else waiting.result()
            waiting = None if run is None else _submitted(dataset, *run)
            if read is not None:
                yield read
            del read
    finally:
        if waiting is not None:
            waiting.cancel()
            wait([waiting])


def _submitted(dataset: Dataset, start: int, stop: int) -> "Future[RowBlock]":
    try:
        return _reader.submit(dataset.block, start, stop)
    except RuntimeError as error:  # the thread's stack is what there was no memory for
        raise MemoryError(f"no thread to read rows ({error})") from error


def usable(dataset: Dataset, frozen: Pass, rows: RowBlock) -> tuple[RowBlock, bool]:
    """The rows to keep, and whether they may miss targets: of those that weigh anything the ones whose inputs and
    weight are finite and (`partial`, `unlabelled`) any target or (`drop`) every target; InputError at the first row
    that is not finite throughout for `refuse`. Without targets `drop` keeps every row of finite inputs. Where there
    are too many patterns of targets, rows of others than the pass is of are left out."""
    rows, spec, patterns = rows.weighty(), frozen.spec, frozen.constants.patterns
    low, high = np.full(dataset.d, np.inf), np.full(dataset.d, -np.inf)
    finite = scan(rows.X, low, high) and scan(rows.Y, *np.zeros((2, dataset.q)))
    if (box := spec.box) is not None and not (finite and np.all(low >= box[0]) and np.all(high <= box[1])):
        rows = _inside(dataset, frozen, box, rows)
    if finite and (patterns is None or "" in patterns) and (rows.weights is None or np.isfinite(rows.weights).all()):
        return rows, False
    good = rows.whole(partial=spec.partial)
    if spec.nan == "refuse":
        raise not_finite(dataset, rows, int(np.argmin(good)))
    if patterns is not None:
        good &= np.any([here for name, here in patterns_of(np.isfinite(rows.Y)) if name in patterns], axis=0)
    return rows[good], spec.partial


def _inside(dataset: Dataset, frozen: Pass, box: FloatArray, rows: RowBlock) -> RowBlock:
    """The rows whose inputs are in the box, or not finite; InputError where others are refused."""
    outside = ((box[0] > rows.X) | (box[1] < rows.X)) & np.isfinite(rows.X)
    if not outside.any() or frozen.spec.recipe["outside"] == "drop":
        return rows[~outside.any(axis=1)]
    row, column = np.argwhere(outside)[0]
    low, high = frozen.spec.recipe["box"][0][column], frozen.spec.recipe["box"][1][column]
    what = f"{dataset.path}: row {rows.numbers[row]}, column {dataset.input_columns[column]}"
    problem = f"{float(rows.X[row, column])!r} is outside of the box that the lattice was made for"
    remedy = "give a data.box that is wide enough for all rows to come (they are then summed anew)"
    raise InputError(f"{what}: {problem}, from {low!r} to {high!r}; {remedy}, or set data.outside: drop")


def not_finite(dataset: Dataset, rows: RowBlock, row: int) -> InputError:
    """What is wrong with a row, and what to do about it."""
    number, values = rows.numbers[row], [*rows.X[row], *rows.Y[row]]
    names = [*dataset.input_columns, *dataset.target_columns]
    if dataset.labels is not None and np.isnan(rows.Y[row]).any() and np.isfinite(rows.X[row]).all():
        remedy = "mend the data, or set data.nan: drop (unlabelled, where manifold terms are to see such rows)"
        return InputError(f"{dataset.path}: row {number} has no label; {remedy}")
    if dataset.weights is not None and rows.weights is not None:
        values, names = [*values, rows.weights[row]], [*names, dataset.weights.name]
    column = int(np.argmin(np.isfinite(values)))
    target = dataset.d <= column < dataset.d + dataset.q
    remedy = "drop or partial (unlabelled, where manifold terms are to see such rows)" if target else "drop"
    place = f"{dataset.path}: row {number} (shard {number // dataset.shard_rows}), column {names[column]}"
    problem = f"expected a finite number, got {values[column]}"
    return InputError(f"{place}: {problem}; mend the data, or set data.nan: {remedy}")
