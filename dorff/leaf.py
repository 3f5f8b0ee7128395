"""One leaf: read its rows, featurize, accumulate, check, write the partial moments, leave a receipt."""

from __future__ import annotations

import hashlib
import io
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, final

import numpy as np
import numpy.typing as npt

from dorff.blocks import BlockSums, RowSums
from dorff.data import Dataset, RowBlock
from dorff.errors import CorruptError, IncompleteError, InputError, StoppedError
from dorff.features import Drawn, FeatureMap, feature_arrays
from dorff.loops import scan
from dorff.moments import FloatArray, Kind, patterns_of
from dorff.stopping import stop_requested
from dorff.store import Receipt, identity, merge_moments, read_plain, save_moments, write_atomic, write_json
from dorff.store.checkpoints import Checkpoint
from dorff.store.frozen import read_frozen, seal_of
from dorff.weights import Density

Rows = npt.NDArray[np.int64]
Keys = npt.NDArray[np.uint64]
TRIES: Final = 3  # of a leaf whose rows change while they are read
# One thread for all leaves of a process: to start one where memory has just run out can hang for ever (CPython waits
# for a thread that could not begin).
_reader: Final = ThreadPoolExecutor(max_workers=1, thread_name_prefix="dorff-read")
_SAME: Final = ("plan", "number", "start", "stop", "stamp")  # what a checkpoint must have in common with its task


@final
@dataclass(frozen=True)
class FoldRule:
    """Which fold a row is in: one fold, whole leaves dealt in turn, or rows by a hash of a seed and of their number
    or, where they have groups, their group's key.

    With `held` there are two folds: 0 is one of `held` that leaves or rows are dealt to, 1 all the others. Of rows it
    is the one that `first` is dealt to, a row's number or a group's key: it always has a row.
    """

    count: int = 1
    by_rows: bool = False
    seed: int = 0
    held: int = 0
    first: int = 0

    @classmethod
    def one_held(cls, count: int, by_rows: bool, seed: int) -> FoldRule:
        """One fold of `count` held out, the others together."""
        return cls(2, by_rows, seed, count)

    def of_leaf(self, number: int) -> int:
        return int(number % self.held > 0) if self.held else number % self.count

    def of(self, rows: RowBlock) -> Rows:
        """Fold numbers (n,) of rows that are dealt: those of a group together."""
        return self.of_rows(rows.numbers if rows.groups is None else rows.groups)

    def of_rows(self, rows: Rows | Keys) -> Rows:
        """Fold numbers (n,): splitmix64 of the row's number or group's key (n,), so that appended rows move no others.

        So many groups are in a fold by chance: of few groups some folds may have none.
        """
        if not self.held:
            return self._dealt(rows, self.count)
        first = self._dealt(np.array([self.first], np.uint64), self.held)
        others: Rows = (self._dealt(rows, self.held) != first).astype(np.int64)
        return others

    def _dealt(self, rows: Rows | Keys, count: int) -> Rows:
        z = rows.astype(np.uint64) + np.uint64((self.seed * 0x9E3779B97F4A7C15) % 2**64)
        z = (z + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return ((z ^ (z >> np.uint64(31))) % np.uint64(count)).astype(np.int64)


@dataclass(frozen=True)
class Place:
    """A folder `directory` that leaves leave their sums and receipts in, named by `hash` of what these are of."""

    directory: Path
    hash: str

    @property
    def receipts(self) -> Path:
        return self.directory / "receipts"

    @property
    def checkpoints(self) -> Path:
        return self.directory / "checkpoints"

    def node(self, level: int, index: int, key: str) -> Path:
        """The file of the sum of leaves [index 2^level, (index + 1) 2^level); the key names what is in it."""
        return self.directory / "nodes" / f"{level:02d}-{index:06d}-{key}.moments"


@final
@dataclass(frozen=True, eq=False)
class Pass(Place):
    """All that the moments depend on besides the rows; frozen by the first plan in `directory`, named by `hash`."""

    features: FeatureMap
    density: Density | None
    y0: FloatArray
    class_weight: FloatArray | None
    block_rows: int
    read_rows: int
    folds: FoldRule
    nan: str  # what to do with rows of NaN or infinity: see `_usable`
    question: dict[str, Any]

    @property
    def patterns(self) -> Sequence[str] | None:
        """Which targets a row has to have exactly, one way or another, to count; None where all ways do."""
        kept: Sequence[str] | None = self.question.get("patterns")
        return kept


def freeze(
    directory: Path, question: dict[str, Any], features: FeatureMap, drawn: Drawn, *, y0: FloatArray,
    class_weight: FloatArray | None = None,
) -> None:  # fmt: skip
    """Write a plan's frozen constants: the arrays first, then `plan.json`, which makes them count."""
    buffer = io.BytesIO()
    more = {"log_density": drawn.log_density, "serves": drawn.serves, "class_weight": class_weight}
    arrays = {"y0": y0, **feature_arrays(features), **{name: one for name, one in more.items() if one is not None}}
    np.savez(buffer, **arrays)  # type: ignore[arg-type]  # mypy takes every name for allow_pickle
    digest = hashlib.sha256(buffer.getbuffer()).hexdigest()
    body = {"question": question, "features": features.phi.config(), "arrays": digest}
    body["check"] = seal_of(body, _plan_identity(directory))
    write_atomic(directory / "arrays.npz", [buffer.getbuffer()], sync=True)
    write_json(directory / "plan.json", body, sync=True)


def _plan_identity(directory: Path) -> str:
    """That of `plan.json`; the folder's own name is the hash of the plan's question."""
    return identity(directory / "plan.json", 2)


def frozen_hash(directory: Path) -> str | None:
    """The name of the pass frozen in a state directory, or None where there is none."""
    try:
        return hashlib.sha256(read_plain(directory / "plan.json")).hexdigest()[:16]
    except FileNotFoundError:
        return None


@lru_cache(maxsize=4)
def load_pass(directory: Path, name: str) -> Pass:
    """The frozen pass `name` in a state directory."""
    text = read_plain(directory / "plan.json")
    if hashlib.sha256(text).hexdigest()[:16] != name:
        raise InputError(f"{directory / 'plan.json'} changed while the job ran; run the job again")
    try:
        frozen = read_frozen(text, read_plain(directory / "arrays.npz"), _plan_identity(directory))
    except (OSError, InputError) as error:
        raise InputError(f"{directory}: the frozen plan is damaged ({error}); remove it and fit again") from error
    features, arrays, question = frozen.features, frozen.arrays, frozen.question
    return Pass(
        directory=directory,
        hash=name,
        features=features,
        density=Drawn(features.phi, arrays.get("log_density"), arrays.get("serves")).density,
        y0=arrays["y0"],
        class_weight=arrays.get("class_weight"),
        block_rows=question["block_rows"],
        read_rows=question["read_rows"],
        folds=FoldRule(**question["folds"]),
        nan=question["nan"],
        question=question,
    )


def run_leaf(directory: str, name: str, dataset: Dataset, number: int, start: int, stop: int) -> Receipt:
    """Compute one leaf's moments, write them, and leave (and return) its receipt."""
    this = load_pass(Path(directory), name)
    sums = BlockSums(
        this.features, this.y0, block_rows=this.block_rows, class_weight=this.class_weight,
        kind=Kind(this.question["sums"]), precision=this.question["precision"],
    )  # fmt: skip
    return sum_leaf(this, this, sums, dataset, number, start, stop)


def sum_leaf(this: Pass, place: Place, sums: RowSums, dataset: Dataset, number: int, start: int, stop: int) -> Receipt:
    """Add one leaf's rows to `sums`, which are empty, write these to their place, and leave (and return) the receipt.

    Goes on from a checkpoint of the same rows, to the bit. Rows that change while they are read are read again.

    Raises:
        InputError: rows that are not what was wanted.
        StoppedError: it was asked to stop, and has left a checkpoint.
        CorruptError: a number in the sums changed in memory, or was computed wrongly.
        IncompleteError: the rows changed each time they were read.
    """
    for _ in range(TRIES):
        run = _Run(this, place, sums, dataset.counted(), number, start, stop)
        wrong = None
        try:
            run.add_all()
        except InputError as error:
            wrong = error
        if not run.changed():
            if wrong:  # not because a file was torn when it was read
                raise wrong
            return run.finish()
        sums.clear()
    raise IncompleteError(
        f"{dataset.path}: rows {start}..{stop - 1} changed while they were read, {TRIES} times; run the job again "
        "when nothing writes to them"
    )


@final
class _Run:
    """One leaf under way: the sums, and in `_at` all that its receipt and checkpoint say of the rows so far, but for
    their bounds."""

    def __init__(
        self, this: Pass, place: Place, sums: RowSums, dataset: Dataset, number: int, start: int, stop: int
    ) -> None:
        self._began = time.perf_counter()
        scan(np.zeros((2, dataset.d)), *np.zeros((2, dataset.d)))  # loaded while there is memory for it
        self._this, self._place, self._sums, self._dataset = this, place, sums, dataset
        none, stamp = (float("inf"),) * dataset.d, dataset.stamp(start, stop)
        fresh = Checkpoint(
            plan=place.hash, number=number, start=start, stop=stop, row=start, stamp=stamp, checksums=(), rows_used=0,
            rows_read=0, low=none, high=tuple(-one for one in none), seconds=0.0, syrk_seconds=0.0,
        )  # fmt: skip
        self._at = resumed(place, sums, fresh)
        self._low, self._high = np.array(self._at.low), np.array(self._at.high)

    def add_all(self) -> None:
        """Add the rows that are left, block by block; StoppedError at a block's end where it was asked for."""
        at, blocks = self._at, self._sums.block_rows
        for read in _read_ahead(self._dataset, (at.start, at.row, at.stop), self._this.read_rows):
            for first in range(0, len(read), blocks):
                self._add(read[first : first + blocks])
                if self._at.row < at.stop and stop_requested():
                    self._now().save(self._place.checkpoints, self._sums.sums)
                    raise StoppedError(
                        f"leaf {at.number}: asked to stop, after row {self._at.row - 1} of {at.start}..{at.stop - 1}; "
                        "what is summed is kept, run the job again to go on"
                    )

    def _add(self, block: RowBlock) -> None:
        at, folds = self._at, self._this.folds
        checksums = block.checksums(at.checksums)
        rows, partial = _usable(self._dataset, self._this, block)
        scan(rows.X, self._low, self._high)
        if folds.by_rows and folds.count > 1:
            fold_of = folds.of(rows)
            for fold in range(folds.count):
                part = rows[fold_of == fold]
                self._sums.add(part.X, part.Y, fold, partial=partial, weights=part.weights)
        else:
            self._sums.add(rows.X, rows.Y, folds.of_leaf(at.number), partial=partial, weights=rows.weights)
        self._at = replace(
            at, row=at.row + len(block), checksums=tuple(checksums), rows_used=at.rows_used + len(rows),
            rows_unlabelled=at.rows_unlabelled + (block.unlabelled() if self._this.nan == "unlabelled" else 0),
        )  # fmt: skip

    def _now(self) -> Checkpoint:
        at = self._at  # what it says of reads and seconds is of before
        return replace(
            at, rows_read=at.rows_read + self._dataset.reads.rows, low=tuple(self._low.tolist()),
            high=tuple(self._high.tolist()), seconds=at.seconds + time.perf_counter() - self._began,
            syrk_seconds=at.syrk_seconds + self._sums.syrk_seconds,
        )  # fmt: skip

    def changed(self) -> bool:
        """Whether the files are others than before the first row was read."""
        return self._dataset.stamp(self._at.start, self._at.stop) != self._at.stamp

    def finish(self) -> Receipt:
        """Check the sums, write them, and leave the receipt instead of a checkpoint."""
        self._check()
        return leave(self._this, self._place, self._sums, self._now)

    def _check(self) -> None:
        at, mixed = self._at, self._this.question.get("precision") == "mixed"
        kind, limit = ("float32", "1e18") if mixed else ("float64", "1e150")
        check_sums(
            self._place, at.number, self._sums,
            torn=f"leaf {at.number} (rows {at.start}..{at.stop - 1}): its sums are not those of its rows; memory or "
            "processor faulty; the leaf is done again, and if this comes back test the machine it was done on",
            large=f"{self._dataset.path}: rows {at.start}..{at.stop - 1}: the sums overflow {kind}; an input, a "
            f"target or the root of a weight is larger than {limit}: rescale the column"
            + (", or set features.precision: double" if mixed else ""),
        )  # fmt: skip


def resumed(place: Place, sums: RowSums, fresh: Checkpoint) -> Checkpoint:
    """The checkpoint of the same task, its sums restored; else `fresh`, and the sums are empty."""
    found = Checkpoint.load(place.checkpoints, fresh.number)
    if found is None or any(getattr(found, name) != getattr(fresh, name) for name in _SAME):
        return fresh
    fits = found.start < found.row < found.stop and len(found.low) == len(found.high) == len(fresh.low)
    if fits and found.restore(place.checkpoints, sums.of):
        return found
    sums.clear()
    return fresh


def check_sums(place: Place, number: int, sums: RowSums, *, torn: str, large: str) -> None:
    """CorruptError, in these words, where sums are not of what was added; InputError where they are, but overflow."""
    adders = sums.sums.values()
    if not all(adder.intact() for adder in adders):
        Checkpoint.remove(place.checkpoints, number)  # it may hold the same
        raise CorruptError(torn)
    if any(adder.overflowed() for adder in adders):
        raise InputError(large)


def leave(this: Pass, place: Place, sums: RowSums, now: Callable[[], Checkpoint]) -> Receipt:
    """Write a task's sums, and leave its receipt instead of a checkpoint. `now` says what is summed, and how long it
    took so far."""
    receipt = now().receipt()
    if frozen_hash(this.directory) != this.hash:  # the run was refused elsewhere, and what it had made removed
        raise InputError(f"{this.directory}: the frozen plan is gone or another; run the job again")
    save_moments(place.node(0, receipt.number, receipt.key), sums.sums)
    sums.keep_spare()
    receipt = receipt.timed(now().seconds)
    receipt.save(place.receipts)
    Checkpoint.remove(place.checkpoints, receipt.number)
    return receipt


def merge_nodes(left: str, right: str, into: str) -> bool:
    """Add two node files into a third; False where one of them is missing or damaged."""
    return merge_moments(Path(left), Path(right), Path(into))


def _read_ahead(dataset: Dataset, at: tuple[int, int, int], rows: int) -> Iterator[RowBlock]:
    """Each run of `rows` from the first of `at` on, without the rows before the second, up to the third; the next one
    is read while this one is worked on."""
    start, row, stop = at
    cuts = [row, *range(start + ((row - start) // rows + 1) * rows, stop, rows), stop]
    try:
        waiting = _reader.submit(dataset.block, *cuts[:2])
    except RuntimeError as error:  # the thread's stack is what there was no memory for
        raise MemoryError(f"no thread to read rows ({error})") from error
    try:
        for following in [*pairwise(cuts[1:]), None]:
            read = waiting.result()
            if following:
                waiting = _reader.submit(dataset.block, *following)
            yield read
    finally:
        waiting.cancel()
        wait([waiting])


def _usable(dataset: Dataset, this: Pass, rows: RowBlock) -> tuple[RowBlock, bool]:
    """The rows to keep, and whether they may miss targets: of those that weigh anything the ones whose inputs and
    weight are finite and (`partial`, `unlabelled`) any target or (`drop`) every target; InputError at the first row
    that is not finite throughout for `refuse`. Without targets `drop` keeps every row of finite inputs. Where there
    are too many patterns of targets, rows of others than the pass is of are left out."""
    rows, nan, patterns = rows.weighty(), this.nan, this.patterns
    finite = scan(rows.X, *np.zeros((2, dataset.d))) and scan(rows.Y, *np.zeros((2, dataset.q)))
    if finite and (patterns is None or "" in patterns) and (rows.weights is None or np.isfinite(rows.weights).all()):
        return rows, False
    partial = nan in ("partial", "unlabelled")
    good = rows.whole(partial=partial)
    if nan == "refuse":
        raise not_finite(dataset, rows, int(np.argmin(good)))
    if patterns is not None:
        good &= np.any([here for name, here in patterns_of(np.isfinite(rows.Y)) if name in patterns], axis=0)
    return rows[good], partial


def not_finite(dataset: Dataset, rows: RowBlock, row: int) -> InputError:
    """What is wrong with a row, and what to do about it."""
    number, values = rows.numbers[row], [*rows.X[row], *rows.Y[row]]
    names = [*dataset.input_columns, *dataset.target_columns]
    if dataset.labels is not None and np.isnan(rows.Y[row]).any() and np.isfinite(rows.X[row]).all():
        return InputError(
            f"{dataset.path}: row {number} has no label; mend the data, or set data.nan: drop (unlabelled, where "
            "manifold terms are to see such rows)"
        )
    if dataset.weights is not None and rows.weights is not None:
        values, names = [*values, rows.weights[row]], [*names, dataset.weights.name]
    column = int(np.argmin(np.isfinite(values)))
    target = dataset.d <= column < dataset.d + dataset.q
    remedy = "drop or partial (unlabelled, where manifold terms are to see such rows)" if target else "drop"
    return InputError(
        f"{dataset.path}: row {number} (shard {number // dataset.shard_rows}), column {names[column]}: expected a "
        f"finite number, got {values[column]}; mend the data, or set data.nan: {remedy}"
    )
