"""Predictions from Zarr to Zarr, shard by shard."""

import errno
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dorff.data import ArrayLayout, Dataset, ShardWriter, open_dataset, shard_and_unit_rows, write_metadata
from dorff.data.labels import MISSING
from dorff.data.layout import SHARD, commit
from dorff.engine import Engine, Task
from dorff.errors import DorffError, InputError
from dorff.kernels.scalar import FloatArray
from dorff.model import Model
from dorff.model.calibration import check_level
from dorff.predict.columns import model_inputs, output_columns, percent
from dorff.predict.renaming import Renaming
from dorff.predict.shared import (
    ModelInputs,
    Notice,
    cached_model,
    check_inputs,
    check_uncertain,
    in_model_units,
    labels_of,
    outcome,
    tell_conversions,
)
from dorff.spec.registry import Config
from dorff.storage.files import rmtree, sync_directory
from dorff.storage.location import locate
from dorff.store import LEASE, Lease, content, forget, load_model, resolve_model, space_on

Progress = Callable[[int, int], None]
NAN_ROWS = "nan_rows"  # of the attribute `dorff`: rows without a prediction, as their inputs are not finite
REPEATING_ROWS = "repeating_rows"  # rows beyond the model's `ends`, where there are some
SMALLEST_SHARD = 4096  # rows of an output shard at least, in whole shards of the inputs


@dataclass(frozen=True)
class Uncertainty:
    """What is to be written of how sure a model is: standard deviations `std`, those of new targets where `noise`, else
    of what is predicted: f, or a rate or probability; and for each of the levels `bands`, between 0 and 1, the ends of
    a band for new targets."""

    std: bool = False
    noise: bool = False
    bands: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        for level in self.bands:
            check_level(level)
        if len(set(self.bands)) < len(self.bands):
            raise InputError(f"bands: a level is named twice in {self.bands}; name each once")
        if self.noise and not self.std:
            raise InputError("--noise (noise=True): says what deviations hold; ask for --std (std=True) too")

    def __bool__(self) -> bool:
        return self.std or bool(self.bands)

    @property
    def of_targets(self) -> bool:
        """Whether any of it is of new targets, with their noise."""
        return self.noise or bool(self.bands)

    @property
    def option(self) -> str:
        """The option of `dorff predict` that a refusal names."""
        if self.noise:
            return "--noise"
        return "--bands" if self.bands else "--std"

    def widths(self, model: Model) -> dict[str, int]:
        """The arrays to write beside y, and their columns."""
        q = model.p if model.observe is None else len(model.observe)
        names = [f"{end}_{percent(level)}" for level in self.bands for end in ("low", "high")]
        return ({"std": q if self.noise else model.p} if self.std else {}) | dict.fromkeys(names, q)

    def arrays(self, model: Model, X: FloatArray, f: FloatArray, views: Sequence[int] | None) -> dict[str, FloatArray]:
        """Their values at X (n, d), where the model (or some of its views) predicts f (n, p)."""
        arrays = dict[str, FloatArray]()
        if self.std:
            of_targets = self.noise or model.loss.kind == "squared"
            std = model.std(X, noise=self.noise, views=views) if of_targets else model.outcome_std(X, views=views)
            arrays["std"] = std
        if self.bands:
            deviations = arrays["std"] if self.noise else model.std(X, noise=True, views=views)
            middle = model.observed(f)
            for level in self.bands:
                half = model.factor(level, conformal=None if views is None else False) * deviations
                arrays |= {f"low_{percent(level)}": middle - half, f"high_{percent(level)}": middle + half}
        return arrays

    def described(self, model: Model, sight: ModelInputs) -> dict[str, Any]:
        """For the store's attributes: whether noise is in std, and what kind of bands there are."""
        words: dict[str, Any] = {"std": {"noise": self.noise}} if self.std else {}
        if self.bands:
            kind = "conformal" if model.conformal is not None and sight.views is None else "plain"
            words["bands"] = {"levels": list(self.bands), "kind": kind, "noise": True}
        return {"uncertainty": words} if words else {}


@dataclass(frozen=True, eq=False)
class Writing:
    """Of the model `version`, whose content has this `name`, what was `asked` for at `dataset`'s inputs. Picklable."""

    version: str
    name: str
    dataset: Dataset
    arrays: Mapping[str, ArrayLayout]
    asked: Uncertainty
    sight: ModelInputs

    def staging(self, out: Path) -> Path:
        """The directory beside `out` that collects shards, one for each question: model, inputs, layout."""
        data = self.dataset
        question: Config = {"model": self.name, "uncertainty": asdict(self.asked), "views": self.sight.views}
        question |= {"store": data.path, "rows": data.n, "first": data.first, "inputs": data.rows_spec()}
        question["stamp"] = data.stamp(data.first, data.n)
        text = json.dumps(question, sort_keys=True)
        path = out.with_name(f".{out.name}.{hashlib.sha256(text.encode()).hexdigest()[:12]}.partial")
        with space_on(out):
            path.mkdir(parents=True, exist_ok=True)
        return path


def predict(
    model: Path, store: Path, out: Path, *, engine: Engine, inputs: str | Sequence[str] | None = None,
    uncertainty: Uncertainty | None = None, views: Sequence[str] | None = None, renaming: Renaming | None = None,
    progress: Progress | None = None, notice: Notice | None = None,
) -> int:  # fmt: skip
    """Write `y` (n, p), the model's values at the inputs of the Zarr group `store`, into a new group `out`.

    Of a classifier `y` holds the classes' probabilities (or the decision values, where it was not calibrated), and an
    array `classes` (n, 1) the likeliest class, as ingest writes labels. With `uncertainty` come `std` (n, p), (n, q)
    with noise, and for a level of 0.95 `low_95` and `high_95` (n, q), bands of new targets C f with their noise:
    conformal where the model has factors, else plain; the attribute `dorff.uncertainty` says which.

    `inputs` names the arrays of `store`: those of a multi-view model, or `x`, if None. `views` names some views of
    such a model: only their arrays are opened, and `y` is the mean of these views; bands are then plain. `renaming` has
    the model's names of columns that are called otherwise in `store`.

    Shards are written whole or not at all, beside `out`, which appears when all are there; the same call after
    an interruption goes on with the shards that are missing. Rows keep their numbers: those before the first of
    `store` are not in `out` either. Rows whose inputs are not finite get NaN; the attribute `dorff.nan_rows` says how
    many they are, `dorff.repeating_rows` how many lie beyond the model's `ends`, if any. Returns the number of rows.
    Inputs in other units than the model's are converted; `notice` is called with a sentence that says so.
    Raises InputError where `out` is there already, the inputs are not the model's or cannot be converted to its units,
    or it has no posterior for what is asked; LeaseError where another run is writing `out`, or took over while this one
    was paused."""
    check_free(out)
    asked = Uncertainty() if uncertainty is None else uncertainty
    version = resolve_model(model)
    fitted = load_model(version, posterior=bool(asked))
    sight = ModelInputs.of(fitted, inputs, views)
    dataset = open_dataset(str(store), inputs=sight.arrays, targets=None)
    dataset = (renaming or Renaming()).dataset(dataset, model_inputs(fitted))
    _check(fitted, version, dataset, sight, asked)
    dataset = in_model_units(fitted, dataset, sight)
    tell_conversions(dataset, notice)
    shard, unit = shard_and_unit_rows(0, fitted.p, -(-SMALLEST_SHARD // dataset.shard_rows) * dataset.shard_rows)
    classes = {} if labels_of(fitted) is None else {"classes": ArrayLayout(1, shard, unit, "int32")}
    arrays = {"y": ArrayLayout(fitted.p, shard, unit)} | classes
    arrays |= {name: ArrayLayout(columns, shard, unit) for name, columns in asked.widths(fitted).items()}
    writing = Writing(str(version), content(version), dataset, arrays, asked, sight)
    with _alone(out) as lease:
        check_free(out)  # another run may have written it since
        try:
            _write(writing, fitted, out, engine, lease, progress)
        except (DorffError, OSError):  # maybe because the next holder of the lease moved or removed what was written
            lease.check()
            raise
    return dataset.rows


def check_free(out: Path) -> None:
    """InputError where something is there."""
    if out.exists():
        raise InputError(f"{out}: is there already; remove it, or choose another name")


@contextmanager
def _alone(out: Path) -> Iterator[Lease]:
    """The lease on a store that is to be written; LeaseError where another run holds it. Its files go with it."""
    path = out.with_name(f".{out.name}.{LEASE}")
    try:
        with Lease.take(path) as lease:
            yield lease
    finally:
        forget(path)


def _write(writing: Writing, model: Model, out: Path, engine: Engine, lease: Lease, progress: Progress | None) -> None:
    """Write the shards that are missing beside `out`, then move all to their place, unless the lease is lost."""
    dataset, shard = writing.dataset, writing.arrays["y"].shard_rows
    staging = writing.staging(out)
    _remove_unfinished(staging)
    shards = range(dataset.first // shard, -(-dataset.n // shard))
    places = [staging / array / "c" for array in writing.arrays]
    missing = [number for number in shards if not all((place / str(number) / SHARD).exists() for place in places)]
    finished, far = len(shards) - len(missing), 0

    def tell() -> None:
        if progress is not None:
            progress(min(finished * shard, dataset.rows), dataset.rows)

    def done(_task: Task, repeating: int) -> Sequence[Task]:
        nonlocal finished, far
        lease.check()
        finished, far = finished + 1, far + repeating
        tell()
        return ()

    tell()  # what an earlier run wrote is not part of this run's pace
    engine.run([Task(predict_shard, (writing, str(staging), number), number) for number in missing], done)
    earlier = [cut for cut in dataset.cuts(shard) if cut[0] // shard not in missing]
    for cut in earlier if model.ends is not None else ():  # what an earlier run wrote
        far += sum(model.repeating(X) for X in _inputs(dataset, *cut))
    with space_on(out):
        commit(staging, {NAN_ROWS: _describe(writing, model, staging)} | ({REPEATING_ROWS: far} if far else {}))
        _remove_unfinished(staging)
        with lease.fenced():
            staging.rename(out)
        sync_directory(out.parent)
        for left in out.parent.glob(f".{out.name}.*.partial"):  # of other questions, never finished
            rmtree(left, ignore_errors=True)


def _remove_unfinished(staging: Path) -> None:
    """Remove the shards, and metadata, that killed writers left half-done: whoever else writes here lost the lease."""
    for path in (*staging.glob("*/c/*/*"), *staging.rglob(".zarr.json.*")):
        if path.name != SHARD:
            path.unlink(missing_ok=True)


def _check(fitted: Model, version: Path, dataset: Dataset, sight: ModelInputs, asked: Uncertainty) -> None:
    """InputError where the inputs are not the model's, or it cannot say what is asked."""
    check_inputs(fitted, dataset, sight)
    if asked:
        check_uncertain(fitted, version, asked.option, of_targets=asked.of_targets)
        for level in asked.bands:
            fitted.factor(level)


def _describe(writing: Writing, model: Model, staging: Path) -> int:
    """Write the predictions' metadata, with a classifier's labels and their counts. Returns how many rows are NaN."""
    arrays, dataset, asked, sight = writing.arrays, writing.dataset, writing.asked, writing.sight
    columns = {
        array: tuple(column.name for column in output_columns(model, array, noise=asked.noise)) for array in arrays
    }
    labels, first, rows = labels_of(model), dataset.first, dataset.n
    more: dict[str, Any] = {} if sight.views is None else {"views": [model.views[view] for view in sight.views]}
    more |= asked.described(model, sight)
    described = [column for array in arrays for column in output_columns(model, array, noise=asked.noise)]
    more |= {"column_attributes": {column.name: dict(column.attributes) for column in described if column.attributes}}
    write_metadata(staging, arrays, first=first, rows=rows, columns=columns, more=more)
    written = open_dataset(staging, inputs=["y"] if labels is None else ["y", "classes"], targets=None)
    empty, counts = 0, np.zeros(model.p, dtype=np.int64)
    for start, stop in written.cuts(written.unit_rows):
        values = written.read(start, stop)[0]
        empty += int(np.isnan(values[:, 0]).sum())
        if labels is not None:
            codes = values[:, -1].astype(np.int64)
            counts += np.bincount(codes[codes != MISSING], minlength=len(labels))
    if labels is not None:
        more |= {"labels": {"classes": list(labels)}, "counts": {"classes": counts.tolist()}}
        write_metadata(staging, arrays, first=first, rows=rows, columns=columns, more=more)
    return empty


def _inputs(dataset: Dataset, first: int, stop: int) -> Iterator[FloatArray]:
    for start in range(first, stop, dataset.unit_rows):
        yield dataset.read(start, min(start + dataset.unit_rows, stop))[0]


def predict_shard(writing: Writing, staging: str, number: int) -> int:
    """Predict and write one shard of rows; how many of them lie beyond the model's `ends`."""
    dataset, sight, rows = writing.dataset, writing.sight, writing.arrays["y"].shard_rows
    fitted = cached_model(writing.version, writing.name, posterior=bool(writing.asked))
    first, stop = max(number * rows, dataset.first), min((number + 1) * rows, dataset.n)
    if not locate(staging).is_dir():
        raise FileNotFoundError(errno.ENOENT, "moved or removed by another run; run the same command again", staging)
    with space_on(locate(staging)), ExitStack() as stack:
        writers = {
            array: stack.enter_context(ShardWriter(locate(staging) / array, layout, start=first))
            for array, layout in writing.arrays.items()
        }
        repeating = 0
        for read in _inputs(dataset, first, stop):
            X = sight.full(read, fitted.d)
            repeating += fitted.repeating(X)
            values = {"y": outcome(fitted, X, sight.views)}
            values |= writing.asked.arrays(fitted, X, values["y"], sight.views)
            if "classes" in writers:
                has_none = np.isnan(values["y"]).any(axis=1)
                values["classes"] = np.where(has_none, MISSING, np.argmax(values["y"], axis=1))[:, None]
            for array, writer in writers.items():
                writer.write(values[array])
    return repeating
