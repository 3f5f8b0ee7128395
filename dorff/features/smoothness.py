"""A Gaussian or a Matern kernel, by the exact evidence of a few hundred rows.

A Gaussian process is so smooth that a function with edges, or a rough one, is predicted with far too small standard
deviations. The evidence on random features (`lengthscale_search`) cannot tell the kernels apart: few features of a
rough kernel are a worse fit than as many of a smooth one. The exact evidence can, of rows that are few enough for it.
It takes errors for independent: those that rows of a group share look like a rough function.
"""

from dataclasses import dataclass, replace
from typing import Any, Final, Self

import numpy as np
from scipy.linalg import lapack

from dorff.features.lengthscale_search import ROWS as SEARCH_ROWS
from dorff.features.lengthscale_search import Tuned, sample_rows, tune_lengthscales
from dorff.kernels import Decomposable, FloatArray, ScalarKernel, scalar_from_config
from dorff.spec.registry import Config

NU: Final = 2.5  # of the Matern kernel: twice differentiable
ROWS: Final = (256, 512, 1024)  # compared on, in turn, until the evidence is decisive
FEW_ROWS: Final = 512  # more are compared on only where the sample has twice as many
LEAST_DISTINCT: Final = 4  # rows that differ from a target's commonest value, if the target is to count
DECISIVE: Final = 3.0  # a difference of log evidences that needs no more rows
MULTIPLES: Final = (0.5, 8.0)  # searched, of the length-scales found on random features
REFINED_MULTIPLES: Final = (0.7, 1.5)  # searched with more rows, of the length-scales best for fewer
_PRECISION: Final = 0.1  # of the log of a multiple
_GAUSSIAN: Final = {"type": "gaussian"}
_MATERN: Final = {"type": "matern", "nu": NU}
_RATIOS: Final = np.geomspace(1e-8, 1e4, num=49)


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

    The Matern kernel's length-scales are the Gaussian's times the multiple of most evidence. Parameters, `options` and
    errors are those of `tune_lengthscales`.
    """
    tuned = tune_lengthscales(kernel, X, Y, each=True, rows=rows, intercept=intercept, weights=weights, **options)
    if not np.isfinite(tuned.log_evidence):  # too few rows, or targets that do not vary
        return tuned
    X, Y, w = sample_rows(X, Y, weights, rows)
    evidence = ExactEvidence(X=X, Y=Y[:, np.ptp(Y, axis=0) > 0], weights=w, intercept=intercept)
    found = _compare(tuned.lengthscale, evidence)
    tuned = replace(tuned, smoothness=found.sentence)
    if found.ahead <= 0.0:
        return tuned
    matern = Decomposable(_with_lengthscale(_MATERN, found.lengthscale), kernel.output)
    return replace(tuned, kernel=matern, lengthscale=found.lengthscale)


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
        """Return that of at most `count` of the rows, evenly spread, and of the targets that vary among them.

        A target that hardly varies is likeliest for the smoothest kernel there is, whatever the others are.
        """
        sample = np.linspace(0, len(self.X) - 1, min(count, len(self.X))).astype(np.intp)
        Y = self.Y[sample]
        commonest = np.array([np.unique(target, return_counts=True)[1].max() for target in Y.T])
        varies = len(Y) - commonest >= LEAST_DISTINCT
        return replace(self, X=self.X[sample], Y=Y[:, varies], weights=self.weights[sample])

    def __call__(self, kernel: ScalarKernel) -> float:
        """Return the log evidence of a kernel at the best ratio of noise variance to signal variance."""
        roots = np.sqrt(self.weights)
        K, Y = roots[:, None] * kernel.gram(self.X, self.X) * roots, roots[:, None] * self.Y
        if self.intercept:  # contrasts: coordinates in an orthonormal basis, but for the first, the intercept's column
            axis = _reflection_to_first(roots)
            K, Y = _reflect(_reflect(K, axis).T, axis)[1:, 1:], _reflect(Y, axis)[1:]
        system = _Tridiagonal.of(K, Y)
        return max(system.log_evidence(ratio) for ratio in _RATIOS)


@dataclass(frozen=True, eq=False, kw_only=True)
class _Comparison:
    """The Matern kernel's best length-scales (d,), and how far its log evidence is `ahead` of the Gaussian's."""

    lengthscale: FloatArray
    ahead: float
    rows: int

    @property
    def sentence(self) -> str:
        """What was measured."""
        if not self.rows:
            return "targets that hardly vary do not tell a Matern kernel from a Gaussian"
        return f"Matern-5/2 has a log evidence {self.ahead:+.1f} beside the Gaussian's, exact on {self.rows} rows"


def _compare(lengthscale: FloatArray, evidence: ExactEvidence) -> _Comparison:
    """Compare both kernels on more and more rows, until the difference is decisive."""
    rough = smooth = lengthscale
    multiples = MULTIPLES
    ahead, compared_rows = 0.0, 0
    for count in (count for count in ROWS if count <= max(FEW_ROWS, len(evidence.X) // 2)):
        sample = evidence.spread(count)
        if sample.Y.shape[1]:
            rough, rough_value = _tune_multiple(_MATERN, rough, sample, multiples)
            smooth, smooth_value = _tune_multiple(_GAUSSIAN, smooth, sample, multiples)
            ahead, multiples = rough_value - smooth_value, REFINED_MULTIPLES
            compared_rows = len(sample.X)
        if abs(ahead) > DECISIVE or len(sample.X) == len(evidence.X):
            break
    return _Comparison(lengthscale=rough, ahead=ahead, rows=compared_rows)


def _tune_multiple(
    config: Config, lengthscale: FloatArray, evidence: ExactEvidence, multiples: tuple[float, float]
) -> tuple[FloatArray, float]:
    """Return a kernel's length-scales times the multiple of most evidence, and that evidence."""
    from scipy.optimize import minimize_scalar  # slow to import

    def descend(log_multiple: float) -> float:
        return -evidence(_with_lengthscale(config, lengthscale * np.exp(log_multiple)))

    found = minimize_scalar(descend, bounds=np.log(multiples), method="bounded", options={"xatol": _PRECISION})
    return lengthscale * np.exp(float(found.x)), -float(found.fun)


def _with_lengthscale(config: Config, lengthscale: FloatArray) -> ScalarKernel:
    """Return the scalar kernel of a configuration with these length-scales, one for each input."""
    return scalar_from_config({**config, "lengthscale": lengthscale.tolist()})


@dataclass(frozen=True, eq=False, kw_only=True)
class _Tridiagonal:
    """A covariance Q T Q^T: `diagonal` (n,) and `beside` (n - 1,) of T, and `targets` Q^T Y (n, q)."""

    diagonal: FloatArray
    beside: FloatArray
    targets: FloatArray

    @classmethod
    def of(cls, K: FloatArray, Y: FloatArray) -> Self:
        """Return that of a symmetric K (n, n) and targets Y (n, q), by LAPACK's sytrd: a fifth of eigh's time."""
        factors, diagonal, beside, tau, info = lapack.dsytrd(K, lower=1)
        assert info == 0
        turned, _, info = lapack.dormqr("L", "T", factors[1:, :-1], tau, Y[1:], lwork=64 * Y.shape[1])
        assert info == 0
        return cls(diagonal=diagonal, beside=beside, targets=np.concatenate([Y[:1], turned]))

    def log_evidence(self, ratio: float) -> float:
        """Return the log evidence at a ratio of noise variance to signal variance."""
        pivots, factors, info = lapack.dpttrf(self.diagonal + ratio, self.beside)
        if info:  # rounding: the ratio is below that of K
            return -np.inf
        solved, info = lapack.dpttrs(pivots, factors, self.targets)
        assert info == 0
        n, q = self.targets.shape
        s2 = np.maximum(np.sum(self.targets * solved, axis=0) / n, np.finfo(np.float64).tiny)  # 0 of constant targets
        return float(-0.5 * (n * np.log(s2).sum() + q * np.log(pivots).sum()))


def _reflection_to_first(column: FloatArray) -> FloatArray:
    """Return the unit vector v (n,) of the reflection I - 2 v v^T of a column (n,) to a multiple of the first axis."""
    axis = np.array(column, dtype=np.float64)
    axis[0] += np.copysign(np.linalg.norm(column), column[0])
    return np.asarray(axis / np.linalg.norm(axis))


def _reflect(columns: FloatArray, axis: FloatArray) -> FloatArray:
    """Return (I - 2 v v^T) times columns (n, k), for the unit vector v of an axis."""
    return np.asarray(columns - 2.0 * np.outer(axis, axis @ columns))
