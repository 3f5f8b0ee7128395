"""Fits of estimators by a loss that is not the square: the rows are read again for every step."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import dask.array as da
import numpy as np
import psutil

from dorff.errors import DoesNotFitError, InputError
from dorff.estimators.array_sums import ArrayReader, ArraySums, Stream, Targets, runs
from dorff.estimators.arrays import GivenFolds, Rows
from dorff.fit import Fitted
from dorff.kernels import FloatArray
from dorff.model import Posterior
from dorff.model.losses import Loss, as_loss
from dorff.moments import Moments, by_fold, pooled
from dorff.passes import Question
from dorff.solvers.by_loss import Descended, Minimisation, check_loss, descend, laplace, laplace_bytes, seen_as

Summed = tuple[Rows, Targets, FloatArray | None, int]  # what `Stream.added` takes


@dataclass(frozen=True, eq=False)
class _OfArrays:
    """What `descend` asks of rows that are in memory, in Zarr or in Dask."""

    summing: ArraySums
    rows: Summed
    loss: Loss
    scale: tuple[float, ...]

    def __call__(self, V: FloatArray, width: float | tuple[float, ...]) -> dict[int, FloatArray]:
        sums = self._answered(Question(V, self.loss, self.scale, width))
        return {fold: one.values.reshape(-1, V.shape[1]) for (fold, _), one in sums.items()}

    def curved(self, V: FloatArray) -> dict[int, Moments]:
        sums = self._answered(Question(V, self.loss, self.scale, curved=True))
        return {column: one for (column, _), one in sums.items()}

    def _answered(self, question: Question) -> Any:
        X, Y, weights, jobs = self.rows
        return replace(self.summing, question=question, tolerance=None).of(X, Y, weights, jobs=jobs)


def descended(
    stream: Stream, rows: Summed, fitted: Fitted, how: Minimisation, *, deviations: bool
) -> tuple[Fitted, Descended, Posterior | None]:
    """The fit by `how.loss` to the rows, which least squares have `fitted`; and, for `deviations`, how far its
    coefficients may lie from it, where the loss is minus the logarithm of a density.
    InputError for folds that overlap, and a kernel whose outputs do not go with the loss."""
    drawing, loss, deal = stream.drawing, how.loss, stream.summing.folds
    check_loss(loss, drawing.setting.kernel, intercept=drawing.setting.intercept)
    if isinstance(deal, GivenFolds) and deal.uses is not None:
        raise InputError("loss: needs folds that each row is in once; give cv a number, or splits that are a partition")
    setting = fitted.settings[fitted.choice.candidate]
    parts = pooled(by_fold(fitted.sums))
    if deviations and loss.coupled:
        _check_memory(loss, fitted.fit.weights.shape, parts[0].q)
    of_rows = _OfArrays(stream.summing, rows, loss, tuple(setting.scaling(parts).tolist()))
    done = descend(setting, fitted.sums, fitted.fit, of_rows, how)
    settings = list(fitted.settings)
    settings[fitted.choice.candidate] = seen_as(setting, done.fit, loss, parts[0].q)
    choice = replace(fitted.choice, fit=done.fit, table=())
    sure = None
    if deviations and loss.likelihood and done.fit.solution.ridge > 0:
        sure = laplace(setting, done, of_rows.curved(done.problem.columns(done.state.h, done.state.b)))
    return replace(fitted, settings=settings, choice=choice, others=dict(done.others)), done, sure


def _check_memory(loss: Loss, shape: tuple[int, int, int], q: int) -> None:
    """Raise DoesNotFitError where a posterior of q coupled values is beyond all memory; `shape` is that of psi."""
    (m, r, _), free = shape, psutil.virtual_memory().available
    wanted = laplace_bytes(loss, m, r, q)
    if wanted > free:
        problem = (
            f"posterior: one system of {m:,} features times {r} for all {q} classes needs {wanted / 2**30:.1f} GiB"
        )
        raise DoesNotFitError(f"{problem}, {free / 2**30:.1f} are free; lower n_features, or leave posterior out")


def loss_of(value: Any, *, classes: bool) -> Loss:
    """The loss of a classifier or a regressor; InputError where it is for other targets."""
    loss = as_loss(value)
    as_loss(loss.config())  # a model says it so, and is read again
    if classes and loss.takes in ("numbers", "counts") and loss.kind != "squared":
        others = "multinomial, logistic, hinge, squared_hinge or simplex"
        raise InputError(f"loss: {loss.kind} is for numbers, and y are classes; take {others}")
    if not classes and loss.takes == "classes":
        raise InputError(f"loss: {loss.kind} is for classes; use ORFFClassifier, or take another loss")
    return loss


def loss_fitted(estimator: Any) -> Loss:
    """The loss of its last fit, whatever parameters are set since."""
    return as_loss(estimator.model_.info.get("loss", "squared"))


def check_values(loss: Loss, Y: Rows, weights: FloatArray | None) -> None:
    """InputError where targets Y (n, q) of rows that weigh anything, by weights (n,), are not what the
    loss wants."""
    for start, values in _parts(Y) if loss.wants else ():
        seen = values
        if weights is not None:
            seen = np.where(weights[start : start + len(values), None] > 0, values, np.nan)
        loss.check(seen, "loss", "y, ", range(start, start + len(seen)), range(seen.shape[1]))


def _parts(Y: Rows) -> Iterator[tuple[int, FloatArray]]:
    if isinstance(Y, da.Array):
        starts = np.concatenate([[0], np.cumsum(Y.chunks[0])])
        return ((int(a), np.asarray(Y[a:b].compute())) for a, b in pairwise(starts))
    reader = ArrayReader(Y, "y", partial=True)
    return ((start, reader.read(start, stop)) for start, stop in runs(Y, Y))
