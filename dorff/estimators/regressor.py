"""ORFFRegressor: the scikit-learn face of operator-valued random Fourier features."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self, final

import dask.array as da
import numpy as np
import numpy.typing as npt
import scipy.sparse
from sklearn.base import MultiOutputMixin, RegressorMixin
from sklearn.metrics import r2_score
from sklearn.utils import check_array
from sklearn.utils.validation import check_is_fitted, validate_data

from dorff.errors import InputError
from dorff.estimators.base import ORFFEstimator, first_column, unchanged
from dorff.estimators.rows import StoredRows, finite, partly, together, unwrap, with_rows
from dorff.estimators.sums import RowSums, one_thread
from dorff.frequencies import Sampler
from dorff.kernels import Decomposable, OperatorKernel, ScalarKernel
from dorff.kernels.scalar import FloatArray
from dorff.leaf import FoldRule


@final
class ORFFRegressor(MultiOutputMixin, RegressorMixin, ORFFEstimator):  # type: ignore[misc]
    """Vector-valued kernel ridge regression by operator-valued random Fourier features, in one pass over the rows.

    f(x) = Phi(x)* h + b minimises (Minh 2016, eq. 72-74 with gI = 0; Brault, Heinonen & d'Alche-Buc 2016)

        1/l sum_i |y_i - f(x_i)|^2 + ridge |f|^2        over the l rows, the intercept b free

    so that `ridge` does not change its meaning with the number of rows; the usual (K + lambda I) a = y of kernel
    ridge regression has lambda = l * ridge.

    Parameters
    ----------
    kernel : OperatorKernel, ScalarKernel or None
        A scalar kernel k0 stands for `Decomposable(k0, "identity")`; None for that of a Gaussian whose length-scale
        is the median distance between rows of a sample.
    n_features : int
        The most columns of the feature matrix, cosines and sines together. A rule that needs another number, such as
        pairs, uses fewer: `model_.feature_map.m`.
    sampler : Sampler or None
        Where frequencies come from; None is `frequencies.Orthogonal()`, or `frequencies.IID()` for a kernel whose
        spectrum rotations change (Laplacian, Cauchy).
    ridge : float or list of floats
        Of a list, the best by generalised cross-validation is taken, or by k-fold error where `cv` is given.
    cv : int or None
        Number of folds. Rows are dealt to folds by a hash of their number and the seed, during the one pass.
    random_state : int, RandomState or None
        An int is the seed of frequencies (and folds) itself, the `seed` of a job file.
    intercept : bool
        Whether b is fitted, without ridge.
    standardize : bool
        Divide inputs and targets by their standard deviations: column by column, but by one number for all inputs
        and one for all targets when the kernel is a vector-field one, which other scaling would break.
        Length-scales are then in scaled units.
    observe : array (q, p) or None
        C where the targets are values of C f, f in R^p (Minh 2016, eq. 67); the identity if None. `predict` gives f.
        With `standardize` one scale then serves all targets.
    missing : "refuse" or "partial"
        Of NaN in y: "partial" takes it for a target that was not observed, and leaves rows out that have none. Each
        pattern of what is there has moments of its own; more than 8 are refused.

    Attributes
    ----------
    model_ : Model
        What `dorff.store.save_model` publishes; predicts, and has an analytic `jacobian`.
    ridge_ : float
        The ridge of the fit.
    gcv_ : ndarray (number of ridges,)
        GCV scores, where several ridges were given without `cv`.
    cv_errors_ : ndarray (number of ridges,)
        Held-out mean squared errors over all rows and outputs, where `cv` was given.
    condition_, rung_ : float, str
        Condition number of the system solved, and the method that solved it.
    n_features_in_, feature_names_in_
        As in scikit-learn.

    Notes
    -----
    X is (n, d), y (n, q) or (n,). Besides what scikit-learn takes, either may be

    - a Zarr array in a local folder: read in runs of its chunks, never as a whole; a missing or damaged chunk is
      refused, not read as zeros. `predict` returns NumPy. One in memory is taken as NumPy;
    - a Dask array: a task a row chunk on the current scheduler, merged in an order fixed by the chunks alone, so that
      neither the scheduler nor the number of workers changes a bit of the fit. `predict` returns a lazy Dask array.
      Dask reads a lost Zarr chunk as zeros, so give a Zarr array itself rather than `dask.array.from_zarr` of it;
    - an xarray DataArray: its data, NumPy's or Dask's. (One opened lazily without `chunks` is loaded as a whole.)

    All kinds agree to rounding: scales, means and the median distance come from at most 1024 rows, in 16 runs spread
    evenly, whatever the kind. Needs about five times 8 (m + q + 1)^2 bytes, and as much again
    for each fold of `cv`, whatever n. Data larger than memory with durable state,
    resumption and appending are the work of `dorff fit`.

    Every refusal is a `dorff.errors.InputError` or scikit-learn's own; both are ValueErrors.
    """

    def __init__(
        self,
        kernel: OperatorKernel | ScalarKernel | None = None,
        n_features: int = 1024,
        *,
        sampler: Sampler | None = None,
        ridge: float | Sequence[float] = 1e-6,
        cv: int | None = None,
        random_state: int | np.random.RandomState | None = 0,
        intercept: bool = True,
        standardize: bool = False,
        observe: npt.ArrayLike | None = None,
        missing: str = "refuse",
    ) -> None:
        self.kernel = kernel
        self.n_features = n_features
        self.sampler = sampler
        self.ridge = ridge
        self.cv = cv
        self.random_state = random_state
        self.intercept = intercept
        self.standardize = standardize
        self.observe = observe
        self.missing = missing

    def fit(self, X: Any, y: Any) -> Self:
        """Fit to inputs X (n, d) and targets y (n, q) or (n,)."""
        self._check_arguments()
        X, y = self._validated(unwrap(X, "X"), unwrap(y, "y"))
        observe = self._observation(1 if y.ndim == 1 else y.shape[1])
        self._one_output = y.ndim == 1 and (observe is None or observe.shape[1] == 1)
        X, Y = together(with_rows(X, "X"), with_rows(y, "y"))
        with one_thread():
            drawing = self._draw(X, Y, scale_targets=self.standardize, observe=observe, partial=self._partial)
            folds = FoldRule(self.cv or 1, by_rows=True, seed=drawing.seed)
            sums = RowSums(drawing.features, drawing.y0, folds, partial=self._partial)
            self.model_ = self._solve(drawing, sums.of(X, Y))
        return self

    def predict(self, X: Any, *, return_std: bool = False) -> Any:
        """f at X (n, d): (n, p), or (n,) where y was 1-d. A lazy Dask array for Dask input, else NumPy."""
        check_is_fitted(self)
        if return_std:
            raise InputError("return_std=True (the predictive deviation) is planned but not built yet; leave it out")
        if self._one_output:
            return self._mapped(X, first_column, ())
        return self._mapped(X, unchanged, (self.model_.p,))

    def score(self, X: Any, y: Any, sample_weight: npt.ArrayLike | None = None) -> float:
        """scikit-learn's R2: the mean over targets of each one's, over the rows that have it. Holds y and the
        predictions in memory."""
        y = unwrap(y, "y")
        if isinstance(y, StoredRows | da.Array):
            flat = y.ndim == 1
            check = partly if self._partial else finite
            y = check(np.asarray(with_rows(y, "y")[:], dtype=np.float64), "y", 0)
            y = y[:, 0] if flat else y
        values = np.asarray(self.predict(X))
        if self.model_.observe is not None:
            values = self.model_.observed(values.reshape(len(values), -1))
        if not self._partial:
            return float(r2_score(y, values, sample_weight=sample_weight))
        Y = np.asarray(y, dtype=np.float64).reshape(len(values), -1)
        return _mean_r2(Y, values.reshape(Y.shape), np.ones(len(Y)) if sample_weight is None else sample_weight)

    def _of_scalar(self, scalar: ScalarKernel) -> OperatorKernel:
        return Decomposable(scalar)

    @property
    def _partial(self) -> bool:
        return self.missing == "partial"

    def _check_arguments(self) -> None:
        super()._check_arguments()
        if self.missing not in ("refuse", "partial"):
            raise InputError(f"missing must be 'refuse' or 'partial', not {self.missing!r}")

    def _observation(self, q: int) -> FloatArray | None:
        """C (q, p)."""
        if self.observe is None:
            return None
        try:
            C = np.asarray(self.observe, dtype=np.float64)
        except (TypeError, ValueError):
            raise InputError(f"observe must be a matrix of numbers, not {self.observe!r}") from None
        if C.ndim != 2 or len(C) != q or C.shape[1] < 1 or not np.isfinite(C).all() or not C.any():
            raise InputError(
                f"observe must be finite, not all zero, with a row for each of the {q} targets; got shape {C.shape}"
            )
        return C

    def _validated(self, X: Any, y: Any) -> tuple[Any, Any]:
        """What scikit-learn demands of X and y, without reading what lies in Zarr or Dask."""
        lazy = tuple(isinstance(values, StoredRows | da.Array) for values in (X, y))
        if scipy.sparse.issparse(y):
            raise InputError("y is a sparse matrix; give a dense one, y.toarray()")
        if not any(lazy) and not self._partial:
            X, y = validate_data(self, X, y, dtype=np.float64, multi_output=True, y_numeric=True)
            return X, y
        if y is None:
            raise InputError("fit requires y to be passed, but the target y is None")
        if not lazy[1]:
            there = "allow-nan" if self._partial else True
            y = check_array(y, ensure_2d=False, dtype=np.float64, input_name="y", ensure_all_finite=there)
        return self._inputs(X, reset=True), y


def _mean_r2(Y: FloatArray, values: FloatArray, weights: npt.ArrayLike) -> float:
    """R2 of each target over its own rows, averaged over the targets that have two or more."""
    there, w = ~np.isnan(Y), np.asarray(weights)
    columns = [j for j in range(Y.shape[1]) if there[:, j].sum() > 1]
    if not columns:
        raise InputError("y has no target that was observed in two rows or more; give more rows to score")
    return float(
        np.mean([r2_score(Y[t, j], values[t, j], sample_weight=w[t]) for j in columns for t in (there[:, j],)])
    )
