"""ORFFRegressor: the scikit-learn face of operator-valued random Fourier features."""

from __future__ import annotations

import numbers
from collections.abc import Sequence
from functools import reduce
from operator import add
from typing import Any, Self

import dask.array as da
import numpy as np
import numpy.typing as npt
import scipy.sparse
from dask.delayed import delayed
from sklearn.base import BaseEstimator, MultiOutputMixin, RegressorMixin
from sklearn.metrics import r2_score
from sklearn.utils import check_array, check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from dorff import __version__
from dorff.errors import InputError
from dorff.estimators.rows import Rows, StoredRows, finite, together, unwrap, with_rows
from dorff.estimators.sums import RowSums, one_thread, sample
from dorff.features import FeatureMap, Recipe
from dorff.frequencies import Sampler, default_sampler
from dorff.kernels import Decomposable, Gaussian, OperatorKernel, ScalarKernel, median_lengthscale
from dorff.kernels.scalar import FloatArray
from dorff.leaf import FoldRule
from dorff.model import Model
from dorff.moments import Moments
from dorff.solvers import Problem, Setting, Solution, kfold_errors, solve, spread


class ORFFRegressor(MultiOutputMixin, RegressorMixin, BaseEstimator):  # type: ignore[misc]
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

    Attributes
    ----------
    model_ : Model
        What `dorff.store.save_model` publishes; predicts, and has an analytic `jacobian`.
    ridge_ : float
        The ridge of the fit.
    gcv_ : ndarray (number of ridges,)
        GCV scores, where a list of ridges was given without `cv`.
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
    ) -> None:
        self.kernel = kernel
        self.n_features = n_features
        self.sampler = sampler
        self.ridge = ridge
        self.cv = cv
        self.random_state = random_state
        self.intercept = intercept
        self.standardize = standardize

    def fit(self, X: Any, y: Any) -> Self:
        """Fit to inputs X (n, d) and targets y (n, q) or (n,)."""
        self._check_arguments()
        X, y = self._validated(unwrap(X, "X"), unwrap(y, "y"))
        self._one_output = y.ndim == 1
        X, Y = together(with_rows(X, "X"), with_rows(y, "y"))
        with one_thread():
            self._fit(X, Y)
        return self

    def predict(self, X: Any, *, return_std: bool = False) -> Any:
        """f at X (n, d): (n, q), or (n,) where y was 1-d. A lazy Dask array for Dask input, else NumPy."""
        check_is_fitted(self)
        if return_std:
            raise InputError("return_std=True (the predictive deviation) is planned but not built yet; leave it out")
        X = unwrap(X, "X")
        if isinstance(X, da.Array | StoredRows):
            validate_data(self, X, skip_check_array=True, reset=False)
            return self._predict_dask(X) if isinstance(X, da.Array) else self._predict_stored(X)
        values = self.model_.predict(validate_data(self, X, dtype=np.float64, reset=False))
        return values[:, 0] if self._one_output else values

    def score(self, X: Any, y: Any, sample_weight: npt.ArrayLike | None = None) -> float:
        """scikit-learn's R2: the mean over outputs of each one's. Holds y and the predictions in memory."""
        y = unwrap(y, "y")
        if isinstance(y, StoredRows | da.Array):
            flat = y.ndim == 1
            y = finite(np.asarray(with_rows(y, "y")[:], dtype=np.float64), "y", 0)
            y = y[:, 0] if flat else y
        return float(r2_score(y, np.asarray(self.predict(X)), sample_weight=sample_weight))

    def _check_arguments(self) -> None:
        count = self.n_features
        if not isinstance(count, numbers.Integral) or isinstance(count, bool) or count < 2:
            raise InputError(f"n_features must be a whole number of 2 or more, got {count!r}; use 1024, say")
        for name, kinds in (("kernel", OperatorKernel | ScalarKernel), ("sampler", Sampler)):
            value = getattr(self, name)
            if value is not None and not isinstance(value, kinds):
                raise InputError(f"{name} must be one of dorff.{_HOMES[name]}, not {value!r}")
        if self.cv is not None and (not isinstance(self.cv, numbers.Integral) or self.cv < 2):
            raise InputError(f"cv must be None or a number of folds of 2 or more, not {self.cv!r}")
        ridges = self._ridges()
        if not ridges or not all(np.isfinite(ridge) and ridge >= 0 for ridge in ridges):
            raise InputError(f"ridge must be a number of 0 or more, or a list of them, not {self.ridge!r}")

    def _ridges(self) -> list[float]:
        try:
            return [float(ridge) for ridge in np.atleast_1d(np.asarray(self.ridge, dtype=np.float64))]
        except (TypeError, ValueError):
            raise InputError(f"ridge must be a number of 0 or more, or a list of them, not {self.ridge!r}") from None

    def _seed(self) -> int:
        if isinstance(self.random_state, numbers.Integral):
            if self.random_state < 0:
                raise InputError(f"random_state must be 0 or more, not {self.random_state}")
            return int(self.random_state)
        return int(check_random_state(self.random_state).randint(2**31))

    def _validated(self, X: Any, y: Any) -> tuple[Any, Any]:
        """What scikit-learn demands of X and y, without reading what lies in Zarr or Dask."""
        lazy = tuple(isinstance(values, StoredRows | da.Array) for values in (X, y))
        if scipy.sparse.issparse(y):
            raise InputError("y is a sparse matrix; give a dense one, y.toarray()")
        if not any(lazy):
            X, y = validate_data(self, X, y, dtype=np.float64, multi_output=True, y_numeric=True)
            return X, y
        if y is None:
            raise InputError("fit requires y to be passed, but the target y is None")
        if not lazy[1]:
            y = check_array(y, ensure_2d=False, dtype=np.float64, input_name="y")
        X = validate_data(self, X, skip_check_array=True) if lazy[0] else validate_data(self, X, dtype=np.float64)
        return X, y

    def _fit(self, X: Rows, Y: Rows) -> None:
        seed, (d, q) = self._seed(), (X.shape[1], Y.shape[1])
        if isinstance(self.kernel, OperatorKernel):
            self.kernel.fix(d, q, np.eye(q))  # what cannot be is refused before a row is read
        if self.cv is not None and self.cv > len(X):
            raise InputError(f"cv = {self.cv} folds need as many rows, but n_samples = {len(X)}; use fewer folds")
        some_x, some_y = sample(X, Y)
        scale = np.ones(d)
        vector_field = isinstance(self.kernel, OperatorKernel) and self.kernel.vector_field
        if self.standardize:
            scale = spread(some_x.var(axis=0), together=vector_field)
        kernel = self._operator_kernel((some_x - some_x.mean(axis=0)) / scale)
        shift_invariant = all(base.scalar.shift_invariant for _, base in kernel.terms())
        # Features that see more of the inputs than their differences see them as they are, unless scaled.
        center = some_x.mean(axis=0) if shift_invariant or self.standardize else np.zeros(d)
        sampler = default_sampler(kernel) if self.sampler is None else self.sampler
        recipe = Recipe(kernel.fix(d, q, np.eye(q)), sampler, d, q, int(self.n_features), bool(self.intercept))
        drawn = recipe.draw(seed)
        features = FeatureMap(drawn.phi, center, scale)
        rows = RowSums(features, some_y.mean(axis=0), FoldRule(self.cv or 1, by_rows=True, seed=seed))
        folds = [moments for _, moments in sorted(rows.of(X, Y).items())]
        solver = Setting(kernel, d, features.m, drawn.density, self.standardize, bool(self.intercept))
        moments = reduce(add, folds)
        if not np.isfinite(moments.packed).all():
            raise InputError("y has numbers so large that their squares overflow float64; rescale the targets")
        problem, solution = self._choose(solver, moments, folds)
        centred = problem.centred
        bias = centred.bias(solution.combined(problem.psi))
        self.model_ = Model(
            features, problem.psi, solution.h, bias, centred.scale, solver.fixed(moments),
            sampler.config(), seed, _info(moments.n, solution),
        )  # fmt: skip
        self.ridge_, self.condition_, self.rung_ = solution.ridge, solution.condition, solution.rung

    def _operator_kernel(self, scaled: FloatArray) -> OperatorKernel:
        if isinstance(self.kernel, OperatorKernel):
            return self.kernel
        return Decomposable(Gaussian(median_lengthscale(scaled)) if self.kernel is None else self.kernel)

    def _choose(self, solver: Setting, moments: Moments, folds: Sequence[Moments]) -> tuple[Problem, Solution]:
        """Solve for the ridge, or the best of the list."""
        ridges = self._ridges()
        for name in ("gcv_", "cv_errors_"):  # of an earlier fit
            self.__dict__.pop(name, None)
        if self.cv is not None:
            self.cv_errors_ = kfold_errors(
                folds, solver.weigh, ridges, intercept=solver.intercept, scaling=solver.scaling
            )
            ridges = [ridges[int(np.argmin(self.cv_errors_))]]
        problem = solver.problem(moments)
        gcv = np.ndim(self.ridge) > 0 and self.cv is None
        solutions = solve(problem, ridges, gcv=gcv)
        if gcv:
            self.gcv_ = np.array([solution.gcv for solution in solutions])
            return problem, solutions[int(np.argmin(self.gcv_))]
        return problem, solutions[0]

    def _predict_stored(self, X: StoredRows) -> FloatArray:
        out = np.empty((len(X), self.model_.p))
        for start, stop in X.runs():
            out[start:stop] = self.model_.predict(finite(X[start:stop], "X", start))
        return out[:, 0] if self._one_output else out

    def _predict_dask(self, X: da.Array) -> da.Array:
        model = delayed(self.model_)  # one copy in the graph
        rows, columns = X.chunks[0], () if self._one_output else ((self.model_.p,),)
        predicted: da.Array = X.rechunk({1: -1}).map_blocks(
            _predict_chunk, model, flat=self._one_output, dtype=np.float64, chunks=(rows, *columns),
            drop_axis=1 if self._one_output else None, meta=np.empty((0,) * (2 - self._one_output)),
        )  # fmt: skip
        return predicted


_HOMES = {"kernel": "kernels", "sampler": "frequencies"}


def _info(n: int, solution: Solution) -> dict[str, Any]:
    report = {"rows_used": n, "ridge": solution.ridge, "condition": solution.condition, "rung": solution.rung}
    return {"report": report, "versions": {"dorff": __version__, "numpy": np.__version__}}


def _predict_chunk(X: FloatArray, model: Model, *, flat: bool, block_id: tuple[int, ...]) -> FloatArray:
    values = model.predict(finite(np.ascontiguousarray(X, dtype=np.float64), f"X, chunk {block_id[0]}", 0))
    return values[:, 0] if flat else values
