"""The exact model with its ridge by two-fold cross-validation, as Brault (2016) section 5.2 chooses it; timed."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from dorff import kernels
from dorff.exact import ExactRidge
from dorff.kernels.scalar import FloatArray

Times = tuple[float, float, float]  # the ridge, seconds of the fit, seconds with the choice


def exact_by_halves(
    kernel: kernels.OperatorKernel, X: FloatArray, Y: FloatArray, ridges: Sequence[float], *, intercept: bool
) -> tuple[ExactRidge, Times]:  # fmt: skip
    """Fitted to all rows with the ridge that predicts each half best from the other."""
    began, half = time.perf_counter(), len(X) // 2
    parts, errors = (slice(half), slice(half, None)), []
    for ridge in ridges:
        errors.append(0.0)
        for train, test in (parts, parts[::-1]):
            model = ExactRidge.fit(kernel, X[train], Y[train], ridge=ridge, intercept=intercept)
            errors[-1] += float(np.sum((model.predict(X[test]) - Y[test]) ** 2))
    ridge, middle = ridges[int(np.argmin(errors))], time.perf_counter()
    model = ExactRidge.fit(kernel, X, Y, ridge=ridge, intercept=intercept)
    ended = time.perf_counter()
    return model, (ridge, ended - middle, ended - began)
