"""Scores of predictions against targets, and how often bands hold them."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np

from dorff.data import Classes, Dataset, RowBlock, open_dataset
from dorff.engine import Engine, Task
from dorff.errors import InputError, MissingArrayError
from dorff.kernels.scalar import FloatArray
from dorff.model import Calibration, Model, Views
from dorff.model.losses import Quantiles
from dorff.predict.columns import fitted_targets, model_inputs
from dorff.predict.renaming import Renaming
from dorff.predict.shared import (
    ModelInputs,
    Notice,
    cached_model,
    check_inputs,
    check_uncertain,
    expected,
    in_model_units,
    labels_of,
    tell_conversions,
)
from dorff.solvers import R2, Spread, row_sums
from dorff.store import content, load_model, resolve_model

COVERAGE_LEVELS: Final = (0.5, 0.8, 0.9, 0.95, 0.99)
ROWS: Final = 65536  # of a task, in whole units that are read

Progress = Callable[[int, int], None]

#: Of a level's bands, by kind, "plain" (the posterior's as they come, noise in them) and "conformal" (corrected on
#: held-out rows): the share of all targets that are inside; and in "per_output" that of each target by name. The
#: conformal ones are None where the model has no factors for the level.
Coverage = dict[str, Any]


@dataclass(frozen=True)
class Scores:
    """How far predictions are from targets. `r2` is what `r2_of` says (`solvers.R2`), the mean of the outputs' or
    pooled. `rmse` is over all entries, whatever their units; `per_output` has both for each target by name, R2 None
    for one that fewer than two rows have; `r2_by_definition` has the mean of several outputs' and the pooled one, to be
    compared with models of other kernels. For classifiers they are those of the probabilities against one-hot rows;
    `accuracy` is the share of rows whose likeliest class is the true one, `log_loss` the mean of -log of the true
    class's probability; None for other models. In all of these rows count by the column `weights`, once where it is
    None. `coverage` has an entry for each level that was asked for, by the level as text, and counts rows.
    Of a model fitted by another loss than the square `loss` is its mean over the rows, in the scaled units of the fit,
    and of quantiles `below` the share of each target that lies below each of its. `rows_dropped` weigh nothing, or were
    left out by `data.nan`; `rows_repeating` lie beyond the model's `ends`."""

    rows: int
    r2: float
    rmse: float
    per_output: dict[str, dict[str, float | None]]
    r2_of: R2
    weights: str | None = None
    accuracy: float | None = None
    log_loss: float | None = None
    coverage: dict[str, Coverage] | None = None
    rows_dropped: int = 0
    rows_repeating: int = 0
    loss: float | None = None
    below: dict[str, dict[str, float]] | None = None
    r2_by_definition: dict[str, float] | None = None


@dataclass(frozen=True, eq=False)
class ScoreSums:
    """Of a run of rows: how many, and how many lie beyond the model's `ends`; of each target `sums` (5, q) as in
    `row_sums`; of a classifier `hits`, by the rows' weights: [those whose likeliest class is the true one, -log of its
    probability, all]; `inside` (2, L, q), how often it is within the plain and the conformal band of each level;
    `losses` (3, c), of each value the loss and how often the target is below it, by weights, and the weights."""

    rows: int
    repeating: int
    sums: FloatArray
    hits: FloatArray
    inside: FloatArray
    losses: FloatArray


def score(
    model: Path, store: Path, *, engine: Engine, inputs: str | Sequence[str] | None = None,
    targets: str | Sequence[str] | None = None, coverage: Sequence[float] = (), views: Sequence[str] | None = None,
    r2_of: R2 | None = None, weights: str | None = None, labelled: str | None = None,
    renaming: Renaming | None = None, progress: Progress | None = None, notice: Notice | None = None,
) -> Scores:  # fmt: skip
    """Scores of the model on the rows of the Zarr group `store`, read once, block by block.

    `targets` is `y` if None; of a classifier `classes`, its array of labels. Targets that were values of C f are
    compared with C f. `coverage` lists levels whose bands are held against the targets. `inputs` names the arrays of
    inputs: those of a multi-view model, or `x`, if None. `views` names some views of such a model: only their arrays
    are opened, and their mean is scored, with plain bands. `r2_of` is the model's own if None (`R2.of_info`); another
    compares it with models of other kernels. Rows count by the column `weights` where the data set has it: that of the
    model's job (`data.weights`) if None; "" counts each once; so `labelled`. `renaming` has the model's names of
    columns that are called otherwise in `store`. Rows of NaN or infinity, and those without a label by
    the job's `data.labelled`, are left out where the model was fitted so. Inputs and targets in other units than the
    model's are converted; `notice` is called with a sentence that says so. Raises InputError where inputs or targets
    are not the model's, it has no posterior for `coverage`, or `nan: refuse` and a row holds NaN or infinity."""
    version, levels = resolve_model(model), tuple(coverage)
    fitted = load_model(version, posterior=bool(levels))
    sight = ModelInputs.of(fitted, inputs, views)
    data, columns = fitted.info.get("data", {}), dict[str, str]()
    opened = partial(open_dataset, str(store), inputs=sight.arrays)
    named = {
        "weights": data.get("weights") if weights is None else weights,
        "labelled": data.get("labelled") if labelled is None else labelled,
    }
    for key, name in named.items():
        with suppress(MissingArrayError):
            if name and opened(targets=None, **{key: name}):  # it has the column
                columns[key] = name
    dataset = opened(targets=_scored(fitted, targets), **columns)
    known = [*model_inputs(fitted), *fitted_targets(fitted)]
    dataset = (renaming or Renaming()).dataset(dataset, known)
    check_inputs(fitted, dataset, sight)
    dataset = in_model_units(fitted, dataset, sight)
    tell_conversions(dataset, notice)
    expected = fitted.p if fitted.observe is None else len(fitted.observe)
    if dataset.q != expected:
        seen = "predicts" if fitted.observe is None else "was fitted to observations C f,"
        raise InputError(f"{store}: has {dataset.q} targets, but the model {seen} {expected}; name as many")
    if not dataset.rows:
        raise InputError(f"{store}: has no rows to score")
    if levels:
        check_uncertain(fitted, version, "--coverage", of_targets=True)
        fitted = replace(fitted, posterior=None)  # whoever evaluates it loads it
    step = max(1, ROWS // dataset.unit_rows) * dataset.unit_rows
    parts: dict[int, ScoreSums] = {}

    def done(task: Task, result: Any) -> Sequence[Task]:
        parts[task.tag] = result
        if progress is not None:
            progress(min(len(parts) * step, dataset.rows), dataset.rows)
        return ()

    shared = (str(version), content(version), dataset, levels, sight)
    engine.run([Task(score_rows, (*shared, range(start, stop)), start) for start, stop in dataset.cuts(step)], done)
    if not (scored := sum(part.rows for part in parts.values())):
        raise InputError(f"{store}: no row has finite inputs and a target to score; name rows that have")
    in_order, of = (
        [parts[start] for start in sorted(parts)],
        r2_of or R2.of_info(fitted.info, fitted.kernel, fitted.observe),
    )
    scores = _merged(fitted, dataset, levels, sight, in_order, of)
    if np.isnan(scores.r2):
        raise InputError(f"{store}: no target is in two rows, which R2 needs; name more rows to score")
    repeating = sum(part.repeating for part in parts.values())
    return replace(scores, rows_dropped=dataset.rows - scored, rows_repeating=repeating)


def _scored(model: Model, targets: str | Sequence[str] | None) -> str | Sequence[str] | Classes:
    if (labels := labels_of(model)) is None:
        return "y" if targets is None else targets
    names = ["classes"] if targets is None else [targets] if isinstance(targets, str) else list(targets)
    if len(names) != 1:
        raise InputError(f"targets: a classifier is scored by one array of labels, not by {', '.join(names)}")
    return Classes(names[0], labels)


def score_rows(
    model: str, name: str, dataset: Dataset, levels: Sequence[float], sight: ModelInputs, span: range
) -> ScoreSums:
    """Of the rows `span`, by the rule that the model was fitted with: rows of NaN or infinity are refused or
    left out; where it was `nan: partial` or `unlabelled`, targets that are there count."""
    fitted = cached_model(model, name, posterior=bool(levels))
    read = dataset.block(span.start, span.stop).weighty()
    rows, rule = read[fitted.kept(sight.full(read.X, fitted.d))], fitted.info.get("data", {}).get("nan", "refuse")
    good = rows.whole(partial=rule in ("partial", "unlabelled"))
    if rule == "refuse" and not good.all():
        raise _not_scored(dataset, rows, int(np.argmin(good)))
    rows = rows[good]
    X, Y, views = sight.full(rows.X, fitted.d), rows.Y, sight.views
    weights = np.ones(len(Y)) if rows.weights is None else rows.weights
    values = expected(fitted, X, views)
    hits = np.array([0.0, 0.0, weights.sum()])
    if dataset.labels is not None:
        codes = np.argmax(Y, axis=1)
        hits[0] = weights[np.argmax(values, axis=1) == codes].sum()
        if (calibration := fitted.info.get("calibration")) is not None:
            logs = Calibration.of(calibration).log_probabilities(fitted.predict(X, views=views))
            hits[1] = -weights @ logs[np.arange(len(codes)), codes]
    inside = np.zeros((2, len(levels), Y.shape[1]))
    if levels:
        inside = _inside(fitted, levels, sight, np.abs(Y - values), fitted.std(X, noise=True, views=views))
    sums = row_sums(Y, values, weights), hits, inside, _losses(fitted, X, Y, weights, views)
    return ScoreSums(len(Y), fitted.repeating(X), *sums)


def _losses(model: Model, X: FloatArray, Y: FloatArray, weights: FloatArray, views: Views) -> FloatArray:
    """`ScoreSums.losses` of rows; none of a model of least squares."""
    if (loss := model.loss).kind == "squared":
        return np.zeros((3, 0))
    f, scale, C = model.predict(X, views=views), model.target_scale, model.observe
    if C is not None and not model.views:
        C = C.reshape(len(C), -1, loss.levels).sum(axis=2)  # of several quantiles it has one
        if not np.array_equal(C, np.eye(C.shape[1])):  # one scale is all targets'
            f, scale = f @ np.kron(C, np.eye(loss.levels)).T, np.full(len(C) * loss.levels, scale[0])
    y = loss.spread(Y / scale[: f.shape[1] : loss.levels])
    there = np.isfinite(y)
    w, y, f = np.where(there, weights[:, None], 0.0), np.where(there, y, 0.0), f / scale[: f.shape[1]]
    return np.array([np.sum(w * one, axis=0) for one in (loss.terms(f, y).value, y <= f, there)])


def _inside(
    model: Model, levels: Sequence[float], sight: ModelInputs, error: FloatArray, std: FloatArray
) -> FloatArray:
    """(2, L, q): how many of the errors (n, q) are within plain and within conformal bands; NaN is in none."""
    inside = np.zeros((2, len(levels), error.shape[1]))
    for number, level in enumerate(levels):
        inside[0, number] = np.count_nonzero(error <= model.factor(level, conformal=False) * std, axis=0)
        if _corrected(model, level, sight):
            inside[1, number] = np.count_nonzero(error <= model.factor(level) * std, axis=0)
    return inside


def _corrected(model: Model, level: float, sight: ModelInputs) -> bool:
    """Whether the model has conformal factors for a level; they are those of all views."""
    return model.conformal is not None and sight.views is None and level <= model.conformal.highest


def _not_scored(dataset: Dataset, rows: RowBlock, row: int) -> InputError:
    """Say what is wrong with a row, how many rows came so, and how they are left out."""
    place = f"{dataset.path}: row {rows.numbers[row]}"
    inputs, targets = rows.X[row], rows.Y[row]
    if dataset.labels is not None and np.isnan(targets).any() and np.isfinite(inputs).all():
        return InputError(f"{place} has no label; remove or mend such rows to score them")
    values, names = [*inputs, *targets], [*dataset.input_columns, *dataset.target_columns]
    if dataset.weights is not None and rows.weights is not None:
        values, names = [*values, rows.weights[row]], [*names, dataset.weights.name]
    column = int(np.argmin(np.isfinite(values)))
    came = f"expected a finite number, got {values[column]}"
    if dataset.unusable:
        came += f"; {dataset.unusable:,} of {dataset.rows:,} rows came with NaN or infinity"
    source = names[column].partition("=")[0].partition(":")[0]
    written = source if source.isidentifier() else f"`{source}`"
    condition = f"{written} == {written}" if np.isnan(values[column]) else f"-1e300 < {written} < 1e300"
    remedy = f'leave such rows out by --where "{condition}" (of ingest, and of score of files), or mend them'
    return InputError(f"{place}, column {names[column]}: {came}; {remedy}")


def _merged(
    model: Model, dataset: Dataset, levels: Sequence[float], sight: ModelInputs, parts: list[ScoreSums], r2_of: R2
) -> Scores:
    """Merge the parts' counts, means and squares (Chan, Golub & LeVeque 1979)."""
    counts, weight, mean, squares, error = parts[0].sums
    for part in parts[1:]:
        more, other, other_mean, other_squares, other_error = part.sums
        total, shift = weight + other, other_mean - mean
        share = other / np.where(total > 0, total, 1.0)
        mean = mean + shift * share
        squares = squares + other_squares + shift**2 * weight * share
        counts, weight, error = counts + more, total, error + other_error
    rows, hits = sum(part.rows for part in parts), np.sum([part.hits for part in parts], axis=0)
    names, spread = dataset.target_columns, Spread.of(counts, weight, mean, squares)
    per_output = {
        name: {"r2": None if np.isnan(r2) else float(r2), "rmse": float(np.sqrt(e / (w or 1.0)))}
        for name, r2, e, w in zip(names, spread.each(error), error, weight, strict=True)
    }
    rmse, by = float(np.sqrt(error.sum() / weight.sum())), None if dataset.weights is None else dataset.weights.name
    scores = Scores(rows, float(r2_of.score(error, spread)), rmse, per_output, r2_of, by)
    if len(names) > 1:
        scores = replace(
            scores, r2_by_definition={str(definition): float(definition.score(error, spread)) for definition in R2}
        )
    losses = np.sum([part.losses for part in parts], axis=0)
    if losses.size:
        mean = float(losses[0].sum() / hits[2])
        scores = replace(scores, loss=mean, below=_below(model, names, losses[1] / np.maximum(losses[2], 1e-300)))
    if levels:
        inside = np.sum([part.inside for part in parts], axis=0)
        covered = {
            f"{level:g}": _coverage(names, inside[:, at], counts, corrected=_corrected(model, level, sight))
            for at, level in enumerate(levels)
        }
        scores = replace(scores, coverage=covered)
    if dataset.labels is None:
        return scores
    loss = hits[1] / hits[2] if "calibration" in model.info else None
    return replace(scores, accuracy=hits[0] / hits[2], log_loss=loss)


def _below(model: Model, names: Sequence[str], shares: FloatArray) -> dict[str, dict[str, float]] | None:
    """Of quantiles, the share of each target below each."""
    if not isinstance(loss := model.loss, Quantiles):
        return None
    each = zip(names, shares.reshape(-1, loss.levels), strict=True)
    return {name: dict(zip(map(str, loss.quantiles), row.tolist(), strict=True)) for name, row in each}


def _coverage(names: Sequence[str], inside: FloatArray, counts: FloatArray, *, corrected: bool) -> Coverage:
    """From how many of each target's `counts` (q,) are inside (2, q)."""
    kinds = {"plain": inside[0], "conformal": inside[1] if corrected else None}
    together = {kind: None if of is None else float(of.sum() / max(counts.sum(), 1)) for kind, of in kinds.items()}
    shares = {kind: None if of is None else (of / np.maximum(counts, 1)).tolist() for kind, of in kinds.items()}
    apart = {name: {kind: of and of[at] for kind, of in shares.items()} for at, name in enumerate(names)}
    return {**together, "per_output": apart}
