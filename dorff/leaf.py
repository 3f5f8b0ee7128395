"""One leaf: read its rows, featurize, accumulate, check, write the partial moments, leave a receipt."""

from __future__ import annotations

import hashlib
import io
import json
import time
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, final

import numpy as np
import numpy.typing as npt

from dorff.blocks import BlockSums
from dorff.data import Dataset
from dorff.errors import InputError
from dorff.features import Drawn, FeatureMap, feature_arrays, features_from
from dorff.loops import scan
from dorff.moments import FloatArray
from dorff.store import Receipt, merge_moments, save_moments, write_atomic, write_json
from dorff.weights import Density

Rows = npt.NDArray[np.int64]


@final
@dataclass(frozen=True)
class FoldRule:
    """Which fold a row is in: one fold, whole leaves dealt in turn, or rows by a hash of their number and a seed.

    With `held` there are two folds: 0 is one of `held` that leaves or rows are dealt to, 1 all the others.
    """

    count: int = 1
    by_rows: bool = False
    seed: int = 0
    held: int = 0

    @classmethod
    def one_held(cls, count: int, by_rows: bool, seed: int) -> FoldRule:
        """One fold of `count` held out, the others together."""
        return cls(2, by_rows, seed, count)

    def of_leaf(self, number: int) -> int:
        return int(number % self.held > 0) if self.held else number % self.count

    def of_rows(self, rows: Rows) -> Rows:
        """Fold numbers (n,): splitmix64 of the row's number (n,), so that appended rows move no others.

        The held-out fold is the one that row 0 is in: it always has a row.
        """
        if not self.held:
            return self._dealt(rows, self.count)
        others: Rows = (self._dealt(rows, self.held) != self._dealt(np.zeros(1, np.int64), self.held)).astype(np.int64)
        return others

    def _dealt(self, rows: Rows, count: int) -> Rows:
        z = rows.astype(np.uint64) + np.uint64((self.seed * 0x9E3779B97F4A7C15) % 2**64)
        z = (z + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return ((z ^ (z >> np.uint64(31))) % np.uint64(count)).astype(np.int64)


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
    began = time.perf_counter()
    this = load_pass(Path(directory), name)
    stamp = dataset.stamp(start, stop)
    sums = BlockSums(this.features, this.y0, block_rows=this.block_rows, class_weight=this.class_weight)
    digest, used = [0, 0], 0
    low, high = np.full(dataset.d, np.inf), np.full(dataset.d, -np.inf)
    for first, X, Y in _read_ahead(dataset, start, stop, this.read_rows):
        digest = [zlib.crc32(X.data, digest[0]), zlib.crc32(Y.data, digest[1])]
        rows = np.arange(first, first + len(X))
        partial = False
        if not (scan(X, low.copy(), high.copy()) and scan(Y, *np.zeros((2, dataset.q)))):
            X, Y, rows = _usable(dataset, this.nan, rows, X, Y)
            partial = this.nan == "partial"
        scan(X, low, high)
        used += len(X)
        if this.folds.by_rows and this.folds.count > 1:
            fold_of = this.folds.of_rows(rows)
            for fold in range(this.folds.count):
                sums.add(X[fold_of == fold], Y[fold_of == fold], fold, partial=partial)
        else:
            sums.add(X, Y, this.folds.of_leaf(number), partial=partial)
    _check(sums, dataset, start, stop)
    receipt = Receipt(
        plan=this.hash, number=number, start=start, stop=stop, digest=f"{digest[0]:08x}{digest[1]:08x}", stamp=stamp,
        rows_used=used, rows_dropped=stop - start - used, low=tuple(low.tolist()), high=tuple(high.tolist()),
        seconds=0.0, syrk_seconds=sums.syrk_seconds,
    )  # fmt: skip
    if frozen_hash(this.directory) != name:  # the run was refused elsewhere, and what it had made removed
        raise InputError(f"{this.directory}: the frozen plan is gone or another; run the job again")
    save_moments(this.node(0, number, receipt.key), sums.sums)
    sums.keep_spare()
    receipt = receipt.timed(time.perf_counter() - began)
    receipt.save(this.receipts)
    return receipt


def merge_nodes(left: str, right: str, into: str) -> bool:
    """Add two node files into a third; False where one of them is missing or damaged."""
    return merge_moments(Path(left), Path(right), Path(into))


def _read_ahead(dataset: Dataset, start: int, stop: int, rows: int) -> Iterator[tuple[int, FloatArray, FloatArray]]:
    """(first row, X, Y) for each run of `rows`, the next one read while this one is worked on."""
    with ThreadPoolExecutor(max_workers=1) as reader:
        waiting = reader.submit(dataset.read, start, min(start + rows, stop))
        for first in range(start, stop, rows):
            X, Y = waiting.result()
            if first + rows < stop:
                waiting = reader.submit(dataset.read, first + rows, min(first + 2 * rows, stop))
            yield first, X, Y


def _usable(
    dataset: Dataset, nan: str, rows: Rows, X: FloatArray, Y: FloatArray
) -> tuple[FloatArray, FloatArray, Rows]:
    """The rows to keep, and their numbers: those whose inputs are finite and (`partial`) any target or (`drop`) every
    target; InputError at the first row that is not finite throughout for `refuse`."""
    enough = np.any if nan == "partial" else np.all
    good = np.isfinite(X).all(axis=1) & enough(np.isfinite(Y), axis=1)
    if nan == "refuse":
        row = int(np.argmin(good))
        if dataset.labels is not None and np.isfinite(X[row]).all():
            raise InputError(f"{dataset.path}: row {rows[row]} has no label; mend the data, or set data.nan: drop")
        names = dataset.input_columns + dataset.target_columns
        values = np.concatenate([X[row], Y[row]])
        column = int(np.argmin(np.isfinite(values)))
        raise InputError(
            f"{dataset.path}: row {rows[row]} (shard {rows[row] // dataset.shard_rows}), column "
            f"{names[column]}: expected a finite number, got {values[column]}; mend the data, or set data.nan: "
            f"{'drop' if column < dataset.d else 'drop or partial'}"
        )
    return X[good], Y[good], rows[good]


def _check(sums: BlockSums, dataset: Dataset, start: int, stop: int) -> None:
    for found in sums.sums.values():
        if not all(np.isfinite(piece).all() for piece in found.pieces()):
            raise InputError(
                f"{dataset.path}: rows {start}..{stop - 1}: the sums overflow float64; an input or a target is "
                "larger than 1e150: rescale the column"
            )
