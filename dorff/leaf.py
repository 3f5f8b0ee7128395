"""One leaf: read its rows, featurize, accumulate, check, write the partial moments, leave a receipt."""

from __future__ import annotations

import hashlib
import io
import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol, final

import numpy as np
import numpy.typing as npt

from dorff.blocks import BlockSums
from dorff.data import Dataset, RowBlock
from dorff.errors import InputError
from dorff.features import Drawn, FeatureMap, feature_arrays, features_from
from dorff.loops import scan
from dorff.moments import FloatArray, Kind
from dorff.store import Receipt, merge_moments, save_moments, write_atomic, write_json
from dorff.weights import Density

Rows = npt.NDArray[np.int64]
Keys = npt.NDArray[np.uint64]


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


class Place(Protocol):
    """Where leaves leave their sums and receipts, and what these are named after: a pass, or a sweep of one."""

    @property
    def directory(self) -> Path: ...
    @property
    def hash(self) -> str: ...
    @property
    def receipts(self) -> Path: ...
    def node(self, level: int, index: int, key: str) -> Path:
        """The file of the sum of leaves [index 2^level, (index + 1) 2^level); the key names what is in it."""
        ...


@final
@dataclass(frozen=True, eq=False)
class Pass:
    """All that the moments depend on besides the rows; frozen by the first plan in `directory`, named by `hash`."""

    directory: Path
    hash: str
    features: FeatureMap
    density: Density | None
    y0: FloatArray
    class_weight: FloatArray | None
    block_rows: int
    read_rows: int
    folds: FoldRule
    nan: str  # what to do with rows of NaN or infinity: refuse, drop, or keep those that miss targets (partial)
    question: dict[str, Any]

    @property
    def receipts(self) -> Path:
        return self.directory / "receipts"

    def node(self, level: int, index: int, key: str) -> Path:
        """The file of the sum of leaves [index 2^level, (index + 1) 2^level); the key names what is in it."""
        return self.directory / "nodes" / f"{level:02d}-{index:06d}-{key}.moments"


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
    body["check"] = _check_of(body)
    write_atomic(directory / "arrays.npz", [buffer.getbuffer()], sync=True)
    write_json(directory / "plan.json", body, sync=True)


def _check_of(body: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


def frozen_hash(directory: Path) -> str | None:
    """The name of the pass frozen in a state directory, or None where there is none."""
    try:
        return hashlib.sha256((directory / "plan.json").read_bytes()).hexdigest()[:16]
    except FileNotFoundError:
        return None


@lru_cache(maxsize=4)
def load_pass(directory: Path, name: str) -> Pass:
    """The frozen pass `name` in a state directory."""
    text = (directory / "plan.json").read_bytes()
    if hashlib.sha256(text).hexdigest()[:16] != name:
        raise InputError(f"{directory / 'plan.json'} changed while the job ran; run the job again")
    try:
        raw = (directory / "arrays.npz").read_bytes()
        body = json.loads(text)
        if body.pop("check") != _check_of(body) or hashlib.sha256(raw).hexdigest() != body["arrays"]:
            raise ValueError("its checksum is wrong")
        arrays = dict(np.load(io.BytesIO(raw), allow_pickle=False))
        features = features_from(body["features"], arrays)
    except (OSError, ValueError, KeyError, AttributeError) as error:
        raise InputError(f"{directory}: the frozen plan is damaged ({error}); remove it and fit again") from error
    question = body["question"]
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


def sum_leaf(
    this: Pass, place: Place, sums: BlockSums, dataset: Dataset, number: int, start: int, stop: int
) -> Receipt:  # fmt: skip
    """Add one leaf's rows to `sums`, write these to their place, and leave (and return) the leaf's receipt."""
    began, dataset = time.perf_counter(), dataset.counted()
    stamp = dataset.stamp(start, stop)
    digest: list[int] = []
    used = 0
    low, high = np.full(dataset.d, np.inf), np.full(dataset.d, -np.inf)
    for read in _read_ahead(dataset, start, stop, this.read_rows):
        digest = read.checksums(digest)
        rows, partial = _usable(dataset, this.nan, read)
        scan(rows.X, low, high)
        used += len(rows)
        if this.folds.by_rows and this.folds.count > 1:
            fold_of = this.folds.of(rows)
            for fold in range(this.folds.count):
                part = rows[fold_of == fold]
                sums.add(part.X, part.Y, fold, partial=partial, weights=part.weights)
        else:
            sums.add(rows.X, rows.Y, this.folds.of_leaf(number), partial=partial, weights=rows.weights)
    _check(sums, dataset, start, stop)
    receipt = Receipt(
        plan=place.hash, number=number, start=start, stop=stop, digest="".join(f"{crc:08x}" for crc in digest),
        stamp=stamp, rows_used=used, rows_dropped=stop - start - used, rows_read=dataset.reads.rows,
        low=tuple(low.tolist()), high=tuple(high.tolist()),
        seconds=0.0, syrk_seconds=sums.syrk_seconds,
    )  # fmt: skip
    if frozen_hash(this.directory) != this.hash:  # the run was refused elsewhere, and what it had made removed
        raise InputError(f"{this.directory}: the frozen plan is gone or another; run the job again")
    save_moments(place.node(0, number, receipt.key), sums.sums)
    sums.keep_spare()
    receipt = receipt.timed(time.perf_counter() - began)
    receipt.save(place.receipts)
    return receipt


def merge_nodes(left: str, right: str, into: str) -> bool:
    """Add two node files into a third; False where one of them is missing or damaged."""
    return merge_moments(Path(left), Path(right), Path(into))


def _read_ahead(dataset: Dataset, start: int, stop: int, rows: int) -> Iterator[RowBlock]:
    """Each run of `rows`, the next one read while this one is worked on."""
    with ThreadPoolExecutor(max_workers=1) as reader:
        waiting = reader.submit(dataset.block, start, min(start + rows, stop))
        for first in range(start, stop, rows):
            read = waiting.result()
            if first + rows < stop:
                waiting = reader.submit(dataset.block, first + rows, min(first + 2 * rows, stop))
            yield read


def _usable(dataset: Dataset, nan: str, rows: RowBlock) -> tuple[RowBlock, bool]:
    """The rows to keep, and whether they may miss targets: of those that weigh anything the ones whose inputs and
    weight are finite and (`partial`) any target or (`drop`) every target; InputError at the first row that is not
    finite throughout for `refuse`."""
    rows = rows.weighty()
    finite = scan(rows.X, *np.zeros((2, dataset.d))) and scan(rows.Y, *np.zeros((2, dataset.q)))
    if finite and (rows.weights is None or np.isfinite(rows.weights).all()):
        return rows, False
    good = rows.whole(partial=nan == "partial")
    if nan == "refuse":
        raise _not_finite(dataset, rows, int(np.argmin(good)))
    return rows[good], nan == "partial"


def _not_finite(dataset: Dataset, rows: RowBlock, row: int) -> InputError:
    """What is wrong with a row, and what to do about it."""
    number, values = rows.numbers[row], [*rows.X[row], *rows.Y[row]]
    names = [*dataset.input_columns, *dataset.target_columns]
    if dataset.labels is not None and np.isnan(rows.Y[row]).any() and np.isfinite(rows.X[row]).all():
        return InputError(f"{dataset.path}: row {number} has no label; mend the data, or set data.nan: drop")
    if dataset.weights is not None and rows.weights is not None:
        values, names = [*values, rows.weights[row]], [*names, dataset.weights.name]
    column = int(np.argmin(np.isfinite(values)))
    return InputError(
        f"{dataset.path}: row {number} (shard {number // dataset.shard_rows}), column {names[column]}: expected a "
        f"finite number, got {values[column]}; mend the data, or set data.nan: "
        f"{'drop or partial' if dataset.d <= column < dataset.d + dataset.q else 'drop'}"
    )


def _check(sums: BlockSums, dataset: Dataset, start: int, stop: int) -> None:
    for found in sums.sums.values():
        if not all(np.isfinite(piece).all() for piece in found.pieces()):
            raise InputError(
                f"{dataset.path}: rows {start}..{stop - 1}: the sums overflow float64; an input or a target is "
                "larger than 1e150: rescale the column"
            )
