"""RandomFeatures: the feature map of a scalar kernel alone, as a transformer of scikit-learn."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, Self, final

import numpy as np
from sklearn.base import ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from dorff.errors import InputError
from dorff.estimators.answers import answered
from dorff.estimators.array_sums import one_thread, sample
from dorff.estimators.arrays import Deferred, unwrap, with_rows
from dorff.estimators.parameters import Nested, named_kernel, seed_of
from dorff.features import FeatureMap, Recipe
from dorff.frequencies import Sampler, default_sampler
from dorff.kernels import Decomposable, ScalarKernel
from dorff.kernels.scalar import FloatArray
from dorff.plan import draw_features


@final
class RandomFeatures(ClassNamePrefixFeaturesOutMixin, TransformerMixin, Nested):  # type: ignore[misc]
    """Random features F of a scalar kernel: F(x) . F(z) estimates k0(x, z), as in the feature maps of the estimators.

    Parameters
    ----------
    kernel : ScalarKernel, name or None
        None is "gaussian"; a name's length-scale is the median distance between rows of a sample.
    n_features, sampler, random_state
        As of `ORFFRegressor`: at most so many columns.
    standardize : bool
        Divide inputs by their standard deviations first.

    Attributes
    ----------
    feature_map_ : FeatureMap
    n_features_in_, feature_names_in_
        As in scikit-learn.

    X (n, d) is of any kind that `ORFFRegressor` takes; constants come from the same rows of it."""

    def __init__(
        self,
        kernel: ScalarKernel | str | None = None,
        n_features: int = 1024,
        *,
        sampler: Sampler | None = None,
        random_state: int | np.random.RandomState | None = 0,
        standardize: bool = False,
    ) -> None:
        self.kernel = kernel
        self.n_features = n_features
        self.sampler = sampler
        self.random_state = random_state
        self.standardize = standardize

    def fit(self, X: Any, y: Any = None) -> Self:
        """Draw the features for inputs X (n, d); y is not looked at. InputError for what cannot be drawn."""
        rows = with_rows(self._validated(X, reset=True), "X")
        some, d = sample(rows, rows)[0], int(rows.shape[1])

        def described(scaled: Callable[[FloatArray], FloatArray]) -> tuple[Decomposable, Recipe]:
            kernel = Decomposable(self._scalar(scaled(some))).fix(d, 1)
            sampler = default_sampler(kernel) if self.sampler is None else self.sampler
            return kernel, Recipe(kernel, sampler, d, 1, self.n_features, intercept=False)

        with one_thread():
            seed, invariant = seed_of(self.random_state), self._scalar(some[:1]).shift_invariant
            tied = () if self.standardize else None
            _, recipe, _, features = draw_features(some, None, described, seed, tied=tied, shift_invariant=invariant)
        if self.sampler is not None and "sampler" in recipe.idle:
            warnings.warn(
                f"sampler={self.sampler!r} has no effect: {recipe.idle['sampler']}", UserWarning, stacklevel=2
            )
        self.feature_map_ = features
        return self

    def transform(self, X: Any) -> Any:
        """F (n, m) at X (n, d): a lazy Dask array for Dask input, else NumPy."""
        check_is_fitted(self)
        X = self._validated(X, reset=False)
        return answered(X, self.feature_map_, FeatureMap.transform, (self.feature_map_.m,))

    @property
    def _n_features_out(self) -> int:
        return self.feature_map_.m

    def _scalar(self, X: FloatArray) -> ScalarKernel:
        """The kernel, for scaled inputs X (n, d) where it is a name."""
        kernel = self.kernel or "gaussian"
        scalar = named_kernel(kernel, X) if isinstance(kernel, str) else kernel
        if not isinstance(scalar, ScalarKernel):
            raise InputError(f"kernel must be a scalar kernel or its name, such as Gaussian(2.0), not {kernel!r}")
        return scalar

    def _validated(self, X: Any, *, reset: bool) -> Any:
        X = unwrap(X, "X")
        if isinstance(X, Deferred):
            validate_data(self, X, skip_check_array=True, reset=reset)
            return X
        return validate_data(self, X, dtype=np.float64, reset=reset)
