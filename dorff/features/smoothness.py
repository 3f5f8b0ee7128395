"""A Gaussian or a Matern kernel, by the exact evidence of a few hundred rows.

A Gaussian process is so smooth that a function with edges, or a rough one, is predicted with far too small standard
deviations. The evidence on random features (`lengthscale_search`) cannot tell the kernels apart: few features of a
rough kernel are a worse fit than as many of a smooth one. The exact evidence can, of rows that are few enough for it.
"""

from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import scipy.linalg
import scipy.optimize

from dorff.features.lengthscale_search import RATIOS, Tuned, sample_rows, tune_lengthscales
from dorff.features.lengthscale_search import ROWS as SEARCH_ROWS
from dorff.kernels import (
    Decomposable,
    FloatArray,
    Gaussian,
    Matern,
    ScalarKernel,
    scalar_from_config,
)
from dorff.kernels.stretched import Stretched

NU: Final = 2.5  # of the Matern kernel: twice differentiable
ROWS: Final = (256, 512)  # the second where the first do not tell
LEAST_ROWS: Final = 32
CLEAR: Final = 3.0  # a difference of log evidences that tells
AHEAD: Final = 2.0  # of the Matern kernel's log evidence, from which on it is taken: its features are more
MULTIPLES: Final = (0.5, 8.0)  # of the length-scales that were found
_PRECISION: Final = 0.05  # of the log of a multiple
_RATIOS: Final = np.geomspace(*RATIOS, num=70)


def tune_smoothness(
    kernel: Decomposable,
    X: FloatArray,
    Y: FloatArray,
    *,
    rows: int = SEARCH_ROWS,
    intercept: bool = True,
    weights: FloatArray | None = None,
    **options: Any,
) -> Tuned:
    """Find the length-scales of a Gaussian kernel, one for each input, and whether a Matern-5/2 kernel is likelier.

    The Matern kernel's length-scales are the Gaussian's times the multiple of most evidence. It is taken where its log
    evidence is higher by `AHEAD`. Parameters, `options` and errors are those of `tune_lengthscales`.
    """
    tuned = tune_lengthscales(kernel, X, Y, each=True, rows=rows, intercept=intercept, weights=weights, **options)
    if tuned.rows < LEAST_ROWS or not np.isfinite(tuned.log_evidence):
        return tuned
    X, Y, w = sample_rows(X, Y, weights, rows)
    found = _compare(tuned.lengthscale, ExactEvidence(X=X, Y=Y[:, np.ptp(Y, axis=0) > 0], weights=w, intercept=intercept))
    status = f"{tuned.status}; {found.sentence}"
    if found.ahead <= AHEAD:
        return replace(tuned, status=status)
    lengthscale = np.atleast_1d(np.asarray(found.rough.config()["lengthscale"], dtype=np.float64))
    return replace(tuned, kernel=Decomposable(found.rough, kernel.output), lengthscale=lengthscale, status=status)


@dataclass(frozen=True, eq=False, kw_only=True)
class ExactEvidence:
    """The log evidence of an exact Gaussian process, of rows X (n, d), Y (n, q) and their `weights` (n,).

    y = f + b + noise of variance s2 / weight; f has the covariance k s2 / ratio. Each target has an s2 of its own, at
    its best value, and with an `intercept` a b of a flat prior (Rasmussen & Williams 2006, equation 2.30; Patterson &
    Thompson 1971). Terms that are the same for all kernels are left out.
    """

    X: FloatArray
    Y: FloatArray
    weights: FloatArray
    intercept: bool

    def spread(self, count: int) -> "ExactEvidence":
        """Return that of at most `count` of the rows, evenly spread."""
        some = np.linspace(0, len(self.X) - 1, min(count, len(self.X))).astype(np.intp)
        return replace(self, X=self.X[some], Y=self.Y[some], weights=self.weights[some])

    def __call__(self, kernel: ScalarKernel) -> float:
        """Return the log evidence of a kernel at the best ratio of noise variance to signal variance."""
        roots = np.sqrt(self.weights)
        K, Y = roots[:, None] * kernel.gram(self.X, self.X) * roots, roots[:, None] * self.Y
        if self.intercept:  # contrasts: coordinates in an orthonormal basis, but for the first, the intercept's column
            axis = _reflection_to_first(roots)
            K, Y = _reflect(_reflect(K, axis).T, axis)[1:, 1:], _reflect(Y, axis)[1:]
        values, vectors = scipy.linalg.eigh(K, check_finite=False)
        variances = np.maximum(values, 0.0)[:, None] + _RATIOS
        s2 = ((vectors.T @ Y) ** 2).T @ (1.0 / variances) / len(Y)
        halves = len(Y) * np.log(s2).sum(axis=0) + Y.shape[1] * np.log(variances).sum(axis=0)
        return float(-0.5 * halves.min())


@dataclass(frozen=True, kw_only=True)
class _Comparison:
    """The Matern kernel with its best length-scales, and how far its log evidence is `ahead` of the Gaussian's."""

    rough: ScalarKernel
    ahead: float
    rows: int

    @property
    def sentence(self) -> str:
        """What was measured."""
        return f"Matern-5/2 has a log evidence {self.ahead:+.1f} beside the Gaussian's, exact on {self.rows} rows"


def _compare(lengthscale: FloatArray, evidence: ExactEvidence) -> _Comparison:
    """Compare both kernels, on as few rows as tell."""
    for count in ROWS:
        some = evidence.spread(count)
        rough, rough_value = _stretch(Matern(lengthscale, nu=NU), some)
        _, smooth_value = _stretch(Gaussian(lengthscale), some)
        ahead = rough_value - smooth_value
        if abs(ahead) > CLEAR or len(some.X) == len(evidence.X):
            break
    return _Comparison(rough=rough, ahead=ahead, rows=len(some.X))


def _stretch(scalar: Stretched, evidence: ExactEvidence) -> tuple[ScalarKernel, float]:
    """Return a kernel with its length-scales times the multiple of most evidence, and that evidence."""
    config = scalar.config()
    lengthscale = np.asarray(config["lengthscale"], dtype=np.float64)

    def stretched(log_multiple: float) -> ScalarKernel:
        return scalar_from_config({**config, "lengthscale": (lengthscale * np.exp(log_multiple)).tolist()})

    def descend(log_multiple: float) -> float:
        return -evidence(stretched(log_multiple))

    found = scipy.optimize.minimize_scalar(
        descend, bounds=np.log(MULTIPLES), method="bounded", options={"xatol": _PRECISION}
    )
    return stretched(float(found.x)), -float(found.fun)


def _reflection_to_first(column: FloatArray) -> FloatArray:
    """Return the unit vector v (n,) of the reflection I - 2 v v^T of a column (n,) to a multiple of the first axis."""
    axis = np.array(column, dtype=np.float64)
    axis[0] += np.copysign(np.linalg.norm(column), column[0])
    return np.asarray(axis / np.linalg.norm(axis))


def _reflect(columns: FloatArray, axis: FloatArray) -> FloatArray:
    """Return (I - 2 v v^T) times columns (n, k), for the unit vector v of an axis."""
    return np.asarray(columns - 2.0 * np.outer(axis, axis @ columns))
