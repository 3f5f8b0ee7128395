"""Predictions from Zarr to Zarr, shard by shard; and scores against targets."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, final

import numpy as np

from dorff.calibration import Calibration
from dorff.data import (
    ArrayLayout,
    Classes,
    Dataset,
    Label,
    ShardWriter,
    open_dataset,
    shard_and_unit_rows,
    write_metadata,
)
from dorff.engine import Engine, Task
from dorff.errors import InputError
from dorff.kernels.scalar import FloatArray
from dorff.model import Model
from dorff.store import load_model, resolve_model, space_on

SMALLEST_SHARD = 4096  # rows of an output shard at least, in whole shards of the inputs

Progress = Callable[[int, int], None]


@final
@dataclass(frozen=True)
class Scores:
    """How far predictions are from targets. `r2` is pooled: 1 - summed squared error / summed squares about each
    output's mean; `rmse` is over all entries; `per_output` has both for each target by name. For classifiers they are
    those of the probabilities against one-hot rows; `accuracy` is the share of rows whose likeliest class is the true
    one, `log_loss` the mean of -log of the true class's probability; None for other models."""

    rows: int
    r2: float
    rmse: float
    per_output: dict[str, dict[str, float]]
    accuracy: float | None = None
    log_loss: float | None = None


def predict(
    model: Path, store: Path, out: Path, *, engine: Engine, inputs: str | Sequence[str] = "x",
    progress: Progress | None = None,
) -> int:  # fmt: skip
    """Write `y` (n, p), the model's values at the inputs of the Zarr group `store`, into a new group `out`.

    Of a classifier `y` holds the classes' probabilities (or the decision values, where it was not calibrated), and an
    array `classes` (n, 1) the likeliest class, as ingest writes labels.

    Shards are written whole or not at all, beside `out`, which appears when all are there; the same call after
    an interruption goes on with the shards that are missing. Returns the number of rows. Raises InputError
    where `out` is there already, or the inputs are not the model's.
    """
    if out.exists():
        raise InputError(f"{out}: is there already; remove it, or choose another name")
    version, dataset = resolve_model(model), open_dataset(str(store), inputs=inputs, targets=None)
    fitted = load_model(version)
    _check_inputs(fitted, dataset)
    shard, unit = shard_and_unit_rows(0, fitted.p, -(-SMALLEST_SHARD // dataset.shard_rows) * dataset.shard_rows)
    arrays = {"y": ArrayLayout(fitted.p, shard, unit)}
    if _labels(fitted) is not None:
        arrays["classes"] = ArrayLayout(1, shard, unit, "int32")
    name = _content(version)
    staging = _staging(out, name, dataset)
    shards = range(-(-dataset.n // shard))
    missing = [number for number in shards if not all(_shard(staging, array, number).exists() for array in arrays)]
    finished = len(shards) - len(missing)

    def tell() -> None:
        if progress is not None:
            progress(min(finished * shard, dataset.n), dataset.n)

    def done(_task: Task, _result: None) -> Sequence[Task]:
        nonlocal finished
        finished += 1
        tell()
        return ()

    tell()  # what an earlier run wrote is not part of this run's pace
    engine.run([Task(predict_shard, (str(version), name, dataset, str(staging), arrays, n), n) for n in missing], done)
    with space_on(out):
        _describe(staging, fitted, arrays, dataset.n)
        os.rename(staging, out)
        for left in out.parent.glob(f".{out.name}.*.partial"):  # of other questions, never finished
            shutil.rmtree(left, ignore_errors=True)
    return dataset.n


def _shard(staging: Path, array: str, number: int) -> Path:
    return staging / array / "c" / str(number) / "0"


def _describe(staging: Path, model: Model, arrays: Mapping[str, ArrayLayout], rows: int) -> None:
    """Write the metadata of the predictions; the labels of a classifier with how often each was predicted."""
    names = model.info.get("data", {}).get("targets") or [f"y{i}" for i in range(model.p)]
    labels = _labels(model)
    if labels is None:
        return write_metadata(staging, arrays, rows=rows, columns={"y": tuple(names)})
    write_metadata(staging, arrays, rows=rows, columns={"y": tuple(names), "classes": ("class",)})
    predicted = open_dataset(staging, inputs="classes", targets=None)
    counts = np.zeros(len(labels), dtype=np.int64)
    for start, stop in predicted.runs():
        counts += np.bincount(predicted.read(start, stop)[0][:, 0].astype(np.int64), minlength=len(labels))
    table = {"labels": {"classes": list(labels)}, "counts": {"classes": counts.tolist()}}
    return write_metadata(staging, arrays, rows=rows, columns={"y": tuple(names), "classes": ("class",)}, more=table)


def _labels(model: Model) -> tuple[Label, ...] | None:
    """The labels of a classifier, one for each output; None of other models."""
    labels = model.info.get("labels")
    return None if labels is None else tuple(labels)


def _outcome(model: Model, X: FloatArray) -> FloatArray:
    """What a model predicts: f, or the probabilities of a calibrated classifier."""
    calibration, f = model.info.get("calibration"), model.predict(X)
    return f if calibration is None else Calibration.of(calibration).probabilities(f)


def predict_shard(
    model: str, name: str, dataset: Dataset, staging: str, arrays: Mapping[str, ArrayLayout], number: int
) -> None:  # fmt: skip
    """Predict and write one shard of rows."""
    fitted, rows = _cached_model(model, name), arrays["y"].shard_rows
    stop = min((number + 1) * rows, dataset.n)
    with space_on(Path(staging)), ExitStack() as stack:
        writers = {
            array: stack.enter_context(ShardWriter(Path(staging) / array, layout, first=number))
            for array, layout in arrays.items()
        }
        for start in range(number * rows, stop, dataset.unit_rows):
            values = _outcome(fitted, dataset.read(start, min(start + dataset.unit_rows, stop))[0])
            writers["y"].write(values)
            if "classes" in writers:
                writers["classes"].write(np.argmax(values, axis=1)[:, None])


def score(
    model: Path, store: Path, *, engine: Engine, inputs: str | Sequence[str] = "x",
    targets: str | Sequence[str] | None = None, progress: Progress | None = None,
) -> Scores:  # fmt: skip
    """Scores of the model on the rows of the Zarr group `store`, read once, block by block.

    `targets` is `y` if None; of a classifier `classes`, its array of labels. Targets that were values of C f are
    compared with C f. Raises InputError where inputs or targets are not the model's, or a row holds NaN or infinity.
    """
    version = resolve_model(model)
    fitted = load_model(version)
    dataset = open_dataset(str(store), inputs=inputs, targets=_scored(fitted, targets))
    _check_inputs(fitted, dataset)
    expected = fitted.p if fitted.observe is None else len(fitted.observe)
    if dataset.q != expected:
        seen = "predicts" if fitted.observe is None else "was fitted to observations C f,"
        raise InputError(f"{store}: has {dataset.q} targets, but the model {seen} {expected}; name as many")
    if not dataset.n:
        raise InputError(f"{store}: has no rows to score")
    step = max(1, 65536 // dataset.unit_rows) * dataset.unit_rows
    parts: dict[int, Any] = {}

    def done(task: Task, result: Any) -> Sequence[Task]:
        parts[task.tag] = result
        if progress is not None:
            progress(min(len(parts) * step, dataset.n), dataset.n)
        return ()

    tasks = [
        Task(score_rows, (str(version), _content(version), dataset, start, min(start + step, dataset.n)), start)
        for start in range(0, dataset.n, step)
    ]
    engine.run(tasks, done)
    scores = _pooled(dataset, [parts[start] for start in sorted(parts)])
    return scores if "calibration" in fitted.info else replace(scores, log_loss=None)


def _scored(model: Model, targets: str | Sequence[str] | None) -> str | Sequence[str] | Classes:
    labels = _labels(model)
    if labels is None:
        return "y" if targets is None else targets
    names = ["classes"] if targets is None else [targets] if isinstance(targets, str) else list(targets)
    if len(names) != 1:
        raise InputError(f"targets: a classifier is scored by one array of labels, not by {', '.join(names)}")
    return Classes(names[0], labels)


def score_rows(model: str, name: str, dataset: Dataset, start: int, stop: int) -> tuple[int, FloatArray, FloatArray]:
    """Of the rows start..stop-1: how many; of each target (4, q) how often it is there, its mean, squares about it,
    squared error; and of a classifier [rows whose likeliest class is the true one, summed -log of its probability].

    A target that is missing does not count, where the model was fitted with `nan: partial`.
    """
    fitted = _cached_model(model, name)
    X, Y = dataset.read(start, stop)
    there = np.isfinite(Y)
    partial = fitted.info.get("data", {}).get("nan") == "partial"
    bad = ~(np.isfinite(X).all(axis=1) & (partial | there.all(axis=1)))
    if bad.any():
        row = int(np.argmax(bad))
        what = "has no label" if dataset.labels is not None and np.isfinite(X[row]).all() else "holds NaN or infinity"
        raise InputError(f"{dataset.path}: row {start + row} {what}; remove or mend such rows to score them")
    found, counts = fitted.observed(_outcome(fitted, X)), there.sum(axis=0)
    mean = np.where(there, Y, 0.0).sum(axis=0) / np.maximum(counts, 1)
    spread, error = (np.where(there, (Y - other) ** 2, 0.0).sum(axis=0) for other in (mean, found))
    hits = np.zeros(2)
    if dataset.labels is not None:
        codes = np.argmax(Y, axis=1)
        hits[0] = np.count_nonzero(np.argmax(found, axis=1) == codes)
        if (calibration := fitted.info.get("calibration")) is not None:
            logs = Calibration.of(calibration).log_probabilities(fitted.predict(X))
            hits[1] = -logs[np.arange(len(codes)), codes].sum()
    return stop - start, np.array([counts, mean, spread, error]), hits


def _pooled(dataset: Dataset, parts: Sequence[tuple[int, FloatArray, FloatArray]]) -> Scores:
    """Merge the parts' counts, means and squares (Chan, Golub & LeVeque 1979)."""
    rows, (counts, mean, spread, error), hits = parts[0]
    for more, (other, other_mean, other_spread, other_error), other_hits in parts[1:]:
        total, shift = counts + other, other_mean - mean
        share = other / np.maximum(total, 1)
        mean = mean + shift * share
        spread = spread + other_spread + shift**2 * counts * share
        rows, counts, error, hits = rows + more, total, error + other_error, hits + other_hits
    per_output = {
        name: {"r2": _r2(float(e), float(s)), "rmse": float(np.sqrt(e / max(n, 1)))}
        for name, e, s, n in zip(dataset.target_columns, error, spread, counts, strict=True)
    }
    pooled = _r2(float(error.sum()), float(spread.sum()))
    scores = Scores(rows, pooled, float(np.sqrt(error.sum() / max(counts.sum(), 1))), per_output)
    return scores if dataset.labels is None else replace(scores, accuracy=hits[0] / rows, log_loss=hits[1] / rows)


def _r2(error: float, spread: float) -> float:
    """As scikit-learn has it for constant targets: 1 when they are met exactly, else 0."""
    return 1.0 - error / spread if spread > 0 else float(error == 0)


def _check_inputs(model: Model, dataset: Dataset) -> None:
    names = model.info.get("data", {}).get("inputs")
    given = list(dataset.input_columns)
    if names and given != names and sorted(given) == sorted(names):
        raise InputError(
            f"{dataset.path}: its inputs are {', '.join(given)}, but the model was fitted to {', '.join(names)}; "
            "give them in that order"
        )
    if dataset.d != model.d:
        raise InputError(
            f"{dataset.path}: has {dataset.d} input columns, but the model was fitted to {model.d}"
            f"{' (' + ', '.join(names) + ')' if names else ''}; give the same columns in the same order"
        )


def _content(version: Path) -> str:
    """Names all that is in a model: its description holds the checksums of its arrays."""
    return hashlib.sha256((version / "zarr.json").read_bytes()).hexdigest()


def _staging(out: Path, content: str, dataset: Dataset) -> Path:
    """The directory beside `out` that collects shards, one for each question: model, inputs, layout."""
    question = {
        "model": content, "store": dataset.path, "rows": dataset.n, "stamp": dataset.stamp(0, dataset.n),
        "inputs": dataset.rows_spec(),
    }  # fmt: skip
    text = json.dumps(question, sort_keys=True)
    path = out.with_name(f".{out.name}.{hashlib.sha256(text.encode()).hexdigest()[:12]}.partial")
    with space_on(out):
        path.mkdir(parents=True, exist_ok=True)
    return path


@lru_cache(maxsize=2)
def _cached_model(path: str, _content: str) -> Model:
    return load_model(path)
